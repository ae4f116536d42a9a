// Figures before and after training.

const FIGURES = [
  {title: 'Accuracy', short: 'accuracy', key: 'task/accuracy', write: percent, share: true, better: 1},
  {title: 'Tokens written per question', short: 'written', key: 'tokens/written_per_question', write: amount, better: -1},
  {title: 'Tokens read per question', short: 'read', key: 'tokens/read_per_question', write: amount, better: -1},
  {title: 'Silent turns', short: 'silent', key: 'comm/silence_rate', write: percent, share: true, better: 0},
];

/** Without evaluations: the mean over the first and the last tenth of the steps. */
function fromTraining(run) {
  const count = Math.max(1, Math.floor(run.steps.length / 10));
  const mean = (values) => {
    const known = values.filter(isNumber);
    return known.length ? known.reduce((a, b) => a + b) / known.length : null;
  };
  const record = (part, label) => Object.fromEntries([
    ['label', label], ...Object.entries(run.series).map(([key, values]) => [key, mean(part(values))])]);
  return {
    before: record((v) => v.slice(0, count), `first ${count} steps`),
    after: record((v) => v.slice(-count), `last ${count} steps`),
  };
}

/** Returns old and new value of a figure, and its change as a colored label. */
function change(figure, before, after) {
  const now = (after || before)[figure.key];
  const old = after && before ? before[figure.key] : null;
  if (!isNumber(old) || !isNumber(now)) return {now, old, pill: null};
  // On other questions or at another temperature, the difference is not the effect of training.
  if (!asksAlike(before, after)) return {now, old, pill: null};
  const size = figure.share ? (100 * (now - old)).toFixed(1) : old ? (100 * (now / old - 1)).toFixed(0) : '';
  const text = size && `${signed(Number(size), figure.share ? 1 : 0)} ${figure.share ? 'points' : '%'}`;
  const direction = Math.sign(Number(size)) * figure.better;  // as shown: no colour for "0 %"
  const kind = direction > 0 ? 'good' : direction < 0 ? 'bad' : '';
  return {now, old, pill: text && h('span', {class: `pill ${kind}`}, text)};
}

/** Returns the two records to compare, and what they were measured on. */
function compared(run) {
  let {before, after} = beforeAndAfter(run);
  if (after || (before && run.steps.length < 2)) {
    const alike = !after || measured(before) === measured(after);
    return {before, after, source: alike ? measured(before) : `before: ${measured(before) || 'unknown'}; after: ${measured(after) || 'unknown'}`};
  }
  if (!run.steps.length) return null;
  ({before, after} = fromTraining(run));
  return {before, after, source: `training batches, ${before.label} and ${after.label}`};
}

function cards(run) {
  const pair = compared(run);
  if (!pair) return null;
  return h('div', {},
    (several || run.runs.length > 1) && h('h3', {}, h('i', {class: 'dot', style: `background:${colour(sets.indexOf(run))}`}), run.name),
    h('div', {class: 'cards'}, FIGURES.map((figure) => {
      const {now, old, pill} = change(figure, pair.before, pair.after);
      const range = interval(pair.after || pair.before, figure.key, figure.write);
      return h('div', {class: 'card figure'},
        h('div', {class: 'label'}, figure.title),
        h('div', {class: 'value'}, figure.write(now), pill),
        h('div', {class: 'label'}, range && `${(pair.after || pair.before).seeds ? 'seeds' : '95 % interval'} ${range}`),
        h('div', {class: 'label'}, isNumber(old) ? `before ${figure.write(old)}` : ''));
    })),
    h('p', {class: 'hint'}, pair.source));
}

/** For many runs: one line each. */
function comparisonTable() {
  const rows = sets.map((run, i) => [run, i, compared(run)]).filter(([, , pair]) => pair);
  if (!rows.length) return null;
  const cell = (figure, pair) => {
    const {now, old, pill} = change(figure, pair.before, pair.after);
    return [h('td', {class: 'n'}, isNumber(old) && h('span', {class: 'muted'}, `${figure.write(old)} \u2192 `), figure.write(now),
      pair.after?.seeds && h('div', {class: 'muted'}, interval(pair.after, figure.key, figure.write))), h('td', {}, pill)];
  };
  return h('div', {class: 'card scroll'}, h('table', {},
    h('thead', {}, h('tr', {}, h('th', {}, 'run'), FIGURES.map((f) => [h('th', {class: 'n'}, f.short), h('th', {}, '')]), h('th', {}, 'measured on'))),
    h('tbody', {}, rows.map(([run, i, pair]) => h('tr', {},
      h('td', {}, h('i', {class: 'dot', style: `background:${colour(i)}`}), run.name),
      FIGURES.map((figure) => cell(figure, pair)), h('td', {class: 'muted wrap'}, pair.source))))));
}

/** A share with its interval, drawn on the scale from 0 to 1. */
function whisker(low, value, high, tint) {
  const x = (v) => 2 + 96 * Math.min(1, Math.max(0, v));
  return svg('svg', {width: 100, height: 14, 'aria-hidden': true},
    svg('line', {x1: 2, x2: 98, y1: 7, y2: 7, class: 'grid'}),
    isNumber(low) && isNumber(high) && svg('rect', {x: x(low), width: x(high) - x(low), y: 3, height: 8, rx: 2, fill: tint, opacity: 0.4}),
    svg('line', {x1: x(value), x2: x(value), y1: 1, y2: 13, stroke: tint, 'stroke-width': 2.5}));
}

function evaluationTable() {
  const rows = runs.flatMap((run, i) => run.evaluations.map((e) => [run, i, e]));
  if (!rows.length) return null;
  const notes = rows.some(([, , e]) => isNumber(e['comm/silence_rate_irrelevant']));
  const by = 'task/accuracy_by_';
  const graders = [...new Set(rows.flatMap(([, , e]) => Object.keys(e).filter((key) => key.startsWith(by))))];
  const cells = rows.map(([run, i, e]) => {
    const tint = isTeam(e) || isTold(e) || isSeen(e) ? colour(setOf[i]) : 'var(--muted)';
    const accuracy = e['task/accuracy'];
    return h('tr', {class: e.label === 'during' ? 'minor' : ''},
      runs.length > 1 && h('td', {}, h('i', {class: 'dot', style: `background:${colour(setOf[i])}`}), run.name),
      h('td', {}, e.label || '-'), h('td', {class: 'n'}, e.step ?? '-'),
      h('td', {}, e.split || '-'), h('td', {class: 'n'}, e.questions ?? '-'),
      h('td', {class: 'n'}, isNumber(e.temperature) ? e.temperature : '-'),
      h('td', {class: 'n'}, percent(accuracy)),
      h('td', {}, isNumber(accuracy) && whisker(e['task/accuracy_low'], accuracy, e['task/accuracy_high'], tint)),
      h('td', {class: 'n'}, interval(e, 'task/accuracy', (x) => (100 * x).toFixed(1)) || '-'),
      graders.map((key) => h('td', {class: 'n'}, percent(e[key]))),
      h('td', {class: 'n'}, amount(e['tokens/written_per_question'])),
      h('td', {class: 'n'}, amount(e['tokens/read_per_question'])),
      h('td', {class: 'n'}, percent(e['comm/silence_rate'])),
      notes && h('td', {class: 'n'}, percent(e['comm/silence_rate_relevant'])),
      notes && h('td', {class: 'n'}, percent(e['comm/silence_rate_irrelevant'])));
  });
  const named = graders.map((key) => `by ${key.slice(by.length)}`);
  const numbers = ['accuracy', '', '95 % interval', ...named, 'written', 'read', 'silent', ...(notes ? ['note relevant', 'note irrelevant'] : [])];
  const heads = [runs.length > 1 && 'run', 'team', 'step', 'split', 'questions', 'temp.', ...numbers];
  const numeric = new Set(['step', 'questions', 'temp.', ...numbers]);
  const table = h('div', {class: 'card scroll'}, h('table', {},
    h('thead', {}, h('tr', {}, heads.filter((x) => x !== false).map((x) => h('th', {class: numeric.has(x) ? 'n' : ''}, x)))),
    h('tbody', {}, cells)));
  return h('details', {open: rows.length <= 16}, h('summary', {}, `All ${rows.length} evaluations`), table);
}

function summarySection() {
  const parts = [...(sets.length <= 2 ? sets.map(cards) : [comparisonTable()]), evaluationTable()].filter(Boolean);
  if (!parts.length) return section('Before and after training', 'no step and no evaluation so far');
  const trained = sets.some((set) => compared(set)?.after);
  return section(trained ? 'Before and after training' : 'Evaluations', sets.length > 2 ? 'written and read: tokens per question; over seeds: mean, lowest to highest' : null, parts);
}

/** Returns a table of settings with a row per name and a column per run. */
function settings(names, columns, text) {
  return h('div', {class: 'card scroll'}, h('table', {class: 'config'},
    columns.length > 1 && h('thead', {}, h('tr', {}, h('th', {}, ''), columns.map((name) => h('th', {}, name)))),
    h('tbody', {}, names.map((name) => h('tr', {}, h('td', {}, name.split(/(?<=[._])/).flatMap((word) => [word, h('wbr')])), columns.map((_, i) => h('td', {}, text(name, i))))))));
}

function configSection() {
  const keys = [...new Set(runs.flatMap((run) => Object.keys(run.config)))].sort();
  if (!keys.length) return null;
  const written = (value) => String(value ?? '') || '-';
  const text = (key, i) => written(runs[i].config[key]);
  const standard = (key) => written(data.defaults[key]);  // '-' may be filled by the algorithm
  const differing = keys.filter((key) => new Set(runs.map((_, i) => text(key, i))).size > 1);
  const same = keys.filter((key) => !differing.includes(key));
  const chosen = same.filter((key) => text(key, 0) !== standard(key));
  const rest = same.filter((key) => !chosen.includes(key));
  return section('Configuration', null,
    differing.length > 0 && [h('p', {class: 'hint'}, 'where the runs differ'), settings(differing, runs.map((run) => run.name), text)],
    chosen.length > 0 && [h('p', {class: 'hint'}, `${chosen.length} settings that differ from the defaults${runs.length > 1 ? ', in all runs' : ''}; "-": no default, or set by the algorithm`),
      settings(chosen, ['here', 'default'], (key, i) => (i ? standard(key) : text(key, 0)))],
    rest.length > 0 && h('details', {}, h('summary', {}, `${rest.length} settings at their defaults`), settings(rest, [''], text)));
}

/** Commit, versions, machine, command and duration of each run. */
function aboutSection() {
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.about)))].filter((name) => name !== 'step');
  const text = (name, i) => String(runs[i].about[name] ?? '-');
  const first = ['command', 'commit', 'host', 'time of all steps and evaluations'].filter((name) => names.includes(name));
  const table = (shown) => settings(shown, runs.map((run) => run.name), text);
  const rest = names.filter((name) => !first.includes(name));
  return section('Provenance', null, first.length > 0 && table(first),
    h('details', {}, h('summary', {}, 'versions and machine'), table(rest)));
}
