// The learning curves.

const DASHES = [null, '6 4', '2 3', '9 3 2 3', '12 4', '1 4'];

const CURVES = [
  {title: 'Accuracy', keys: [['task/accuracy', 'training']], unit: '%', points: 'task/accuracy'},
  {title: 'Tokens written per question', keys: [['tokens/written_per_question', 'training']], points: 'tokens/written_per_question', zero: true},
  {title: 'Tokens read per question', keys: [['tokens/read_per_question', 'training']], points: 'tokens/read_per_question', zero: true},
  {
    title: 'Silent turns', zero: true, unit: '%',
    keys: [['comm/silence_rate_relevant', 'note relevant'], ['comm/silence_rate_irrelevant', 'note irrelevant']],
    otherwise: [['comm/silence_rate', 'all turns']],
  },
  {
    title: 'Worth of messages, nats of the gold answer',
    keys: [['worth/relevant_nats', 'note relevant'], ['worth/irrelevant_nats', 'note irrelevant']],
  },
  {title: 'Judgment of notes before a message, AUC', keys: [['judgement/auc', 'training']], points: 'judgement/auc'},
  {title: 'Tokens received from teammates per question', keys: [['tokens/heard_per_question', 'training']], zero: true},
  {title: 'Sparsity of the learned graph', keys: [['graph/sparsity', 'share of possible messages not sent']], zero: true, unit: '%'},
  {title: 'Token price lambda_tok', keys: [['budget/lambda_tok', 'lambda_tok']], zero: true},
  {
    title: 'Reward and its terms', choose: true,
    keys: [['reward/mean', 'reward'], ['reward/task', 'task'], ['reward/token_cost', 'token cost'], ['reward/turn_cost', 'turn cost'], ['reward/repetition', 'repetition']],
  },
  {title: 'Sequence ratio, mean', keys: [['policy/ratio_mean', 'all minibatches'], ['policy/ratio_first_minibatch_mean', 'first minibatch']]},
  {title: 'Clipped messages', keys: [['policy/clip_fraction', 'clipped']], zero: true, unit: '%'},
];

const has = (run, key) => (run.series[key] || []).some(isNumber);

/** Returns the shown settings, or each of their seeds, with the index of their color. */
const shownSets = () => sets.flatMap((set, i) => (view.hidden.has(i) ? [] : (view.each ? set.runs : [set]).map((run) => [run, i])));

/** Returns the lowest and highest seed for `chart`: smoothed like their mean, and raw. */
function rangeOf(run, key, weight) {
  if (!run.low?.[key]) return {};
  const ends = [run.low[key], run.high[key]];
  const [low, high] = ends.map((values) => smooth(values, weight));
  return {low, high, ends};
}

function linesOf(keys) {
  const shown = shownSets();
  const present = keys.filter(([key]) => shown.some(([run]) => has(run, key)));
  return shown.flatMap(([run, i]) => present.map(([key, name], k) => {
    if (!has(run, key)) return null;
    const y = smooth(run.series[key], view.smoothing);
    return {
      name: shown.length > 1 ? (present.length > 1 ? `${run.name}, ${name}` : run.name) : name,
      // One run: a color per curve. Several: a color per run, a dash pattern per curve.
      colour: colour(several ? i : k),
      dash: several ? DASHES[k % DASHES.length] : null,
      legend: present.length > 1 ? name : null,
      legendColour: several ? 'currentColor' : null,
      x: run.steps, y, raw: view.smoothing ? run.series[key] : null, faint: view.smoothing && !several && !run.low,
      ...rangeOf(run, key, view.smoothing),
    };
  }).filter(Boolean));
}

function pointsOf(key) {
  return shownSets().flatMap(([run, i]) => run.evaluations
    .filter((e) => isTeam(e) && isNumber(e[key]) && isNumber(e.step))
    .map((e) => ({
      name: `${run.name}, step ${e.step}, ${e.label || ''}, ${e.split || ''}: ${compact(e[key])}`,
      colour: colour(i), legend: e.seeds ? 'evaluations, lowest to highest seed' : 'evaluation, 95 % interval', hollow: true,
      x: e.step, y: e[key], low: e[key + '_low'], high: e[key + '_high'],
    })));
}

function curveChart(curve) {
  let chosen = 0;
  const choose = several && curve.choose;
  const keysNow = () => {
    if (choose) return [curve.keys[chosen]];
    const any = curve.keys.some(([key]) => runs.some((run) => has(run, key)));
    return any || !curve.otherwise ? curve.keys : curve.otherwise;
  };
  const picker = choose && select('which term', curve.keys.map(([, name]) => name), 0, (i) => {
    chosen = i;
    made.draw();
  });
  const known = [...curve.keys, ...(curve.otherwise || [])].filter(([key]) => runs.some((run) => has(run, key)));
  const made = chart(curve.title, () => ({
    lines: linesOf(keysNow()), points: curve.points ? pointsOf(curve.points) : [],
    unit: curve.unit, zero: curve.zero,
  }), [h('code', {}, (known.length ? keysNow().map(([key]) => key) : [curve.points]).join(' ')), picker]);
  const evaluated = new Set(curve.points ? pointsOf(curve.points).map((point) => point.x) : []);
  return known.length || evaluated.size > 1 ? made.card : null;
}

function timeChart() {
  const parts = [['time/rollout_s', 'rollout'], ['time/score_s', 'score'], ['time/worth_s', 'worth'], ['time/update_s', 'update']];
  const timed = runs.map((run, i) => i).filter((i) => parts.some(([key]) => has(runs[i], key)) || has(runs[i], 'time/step_s'));
  if (!timed.length) return null;
  let index = timed[0];
  const picker = timed.length > 1 && select('which run', timed.map((i) => runs[i].name), 0, (i) => {
    index = timed[i];
    made.draw();
  });
  const made = chart('Seconds per step', () => {
    const run = runs[index];
    const zeros = run.steps.map(() => 0);
    const known = parts.map(([key]) => run.series[key] || zeros);
    const whole = run.series['time/step_s'];
    const rest = whole && whole.map((x, i) => Math.max(0, x - known.reduce((sum, y) => sum + (y[i] || 0), 0)));
    const areas = parts.map(([, name], k) => ({name, colour: colour(k), x: run.steps, y: known[k]}));
    if (rest) areas.push({name: 'other', colour: 'var(--muted)', x: run.steps, y: rest});
    // The first step compiles, and would set the scale.
    const sums = run.steps.map((_, i) => areas.reduce((sum, a) => sum + (a.y[i] || 0), 0)).sort((a, b) => a - b);
    const usual = sums[Math.floor(0.95 * (sums.length - 1))];
    return {areas, most: sums[sums.length - 1] > 2 * usual ? 1.3 * usual : undefined};
  }, picker);
  return made.card;
}

function anyChart() {
  const keys = [...new Set(runs.flatMap((run) => Object.keys(run.series)))].sort();
  if (!keys.length) return null;
  let chosen = Math.max(0, keys.indexOf('policy/entropy'));
  const picker = select('which metric', keys, chosen, (i) => {
    chosen = i;
    made.draw();
  });
  const made = chart('Any metric', () => ({lines: linesOf([[keys[chosen], keys[chosen]]])}), picker);
  return made.card;
}

/** SFT has steps of its own. */
function sftChart(title, shows) {
  const of = (run, key) => run.sft.series[key] || [];
  const keys = [...new Set(runs.flatMap((run) => Object.keys(run.sft.series)))].filter(shows).sort();
  if (!keys.length) return null;
  const name = (key) => key.replace('sft/', '').replace('judgement/', '').replace('silence_at_', 'silence at ').replace('loss_nats', 'training').replace('validation_nats', 'validation').replace('_', ', ');
  return chart(title, () => ({
    lines: shownSets().flatMap(([run, i]) => keys.filter((key) => of(run, key).some(isNumber)).map((key) => {
      const k = keys.indexOf(key);
      // Validations are less frequent: a line joins them.
      const kept = run.sft.steps.map((_, n) => n).filter((n) => isNumber(of(run, key)[n]));
      const y = kept.map((n) => of(run, key)[n]);
      const smoothed = key === 'sft/loss_nats' ? smooth(y, view.smoothing) : y;
      return {
        name: several ? `${run.name}, ${name(key)}` : name(key), colour: colour(several ? i : k),
        dash: several ? DASHES[k % DASHES.length] : null, legend: name(key), legendColour: several ? 'currentColor' : null,
        x: kept.map((n) => run.sft.steps[n]), y: smoothed, raw: smoothed === y ? null : y,
      };
    })),
    xLabel: 'steps of SFT', zero: true,
  })).card;
}

/** Accuracy against tokens: which run is worth its price. */
function tradeChart() {
  const tokens = 'tokens/written_per_question';
  // Evaluations on training questions are left out.
  const usable = (e) => isNumber(e['task/accuracy']) && isNumber(e[tokens]) && !isSeen(e);
  if (sets.flatMap((run) => run.evaluations).filter(usable).length < 2) return null;
  return chart('Accuracy against tokens written', () => {
    const tracks = [];
    const points = [];
    const named = new Set();
    shownSets().forEach(([run, i]) => {
      const shown = run.evaluations.filter(usable);
      const team = shown.filter(isTeam);
      const {after} = beforeAndAfter(run);
      // Those after the same steps: an older team's answers to other prices are another curve.
      const last = shown.filter(isTold).pop();
      const told = shown.filter((e) => isTold(e) && e.step === last.step).sort((a, b) => a.told - b.told);
      const kinds = {told: 'told a price or budget', after: 'after training', other: 'before, during, baselines'};
      // Last and on top: what a team has learned. It may be told its own price among others.
      const drawn = [...shown.filter((e) => !isTold(e) && e !== after), ...told, ...shown.filter((e) => e === after && !isTold(e))];
      for (const e of drawn) {
        const kind = isTold(e) ? 'told' : e === after ? 'after' : 'other';
        const baseline = kind === 'other' && !isTeam(e);
        const label = kind === 'told' ? String(e.told) : baseline && !named.has(e.label) ? e.label : null;
        named.add(label);
        points.push({
          name: `${run.name}: ${e.label}, step ${e.step}, ${percent(e['task/accuracy'])}, ${amount(e[tokens])} tokens`,
          x: e[tokens], y: e['task/accuracy'], colour: baseline ? 'var(--muted)' : colour(i),
          low: e['task/accuracy_low'], high: e['task/accuracy_high'], hollow: kind === 'other', square: kind === 'told',
          legend: kinds[kind], label,
        });
      }
      tracks.push({colour: colour(i), dash: '2 4', x: team.map((e) => e[tokens]), y: team.map((e) => e['task/accuracy'])});
      tracks.push({colour: colour(i), x: told.map((e) => e[tokens]), y: told.map((e) => e['task/accuracy'])});
    });
    return {tracks, points, unit: '%', xLabel: 'tokens written per question', xZero: true, xMargin: true};
  }).card;
}

/** A row a step of each run, a column a metric. */
function metricRows() {
  const keys = [...new Set(runs.flatMap((run) => Object.keys(run.series)))].sort();
  const rows = runs.flatMap((run) => run.steps.map((step, i) => [run.name, step, ...keys.map((key) => run.series[key]?.[i])]));
  return csv([['run', 'step', ...keys], ...rows]);
}

function curvesSection() {
  const slider = h('input', {type: 'range', min: 0, max: 0.95, step: 0.05, value: view.smoothing, 'aria-label': 'smoothing',
    oninput: () => {
      view.smoothing = Number(slider.value);
      changed();
    }});
  const cards = [...CURVES.map(curveChart), sftChart('SFT, nats per token', (key) => key.endsWith('_nats') || key.includes('_nats_')),
    sftChart('SFT, judgment of note holders', (key) => key.startsWith('judgement/')), tradeChart(), timeChart(), anyChart()].filter(Boolean);
  if (!cards.length) return null;
  return section(runs.some((run) => run.steps.length) ? 'Learning curves' : 'Charts', null,
    h('div', {class: 'controls'}, h('label', {}, 'smoothing', slider),
      sets.length < runs.length && select('seeds', ['seeds together: mean, lowest to highest', 'each seed'], 0, (i) => {
        view.each = i === 1;
        changed();
      }),
      saves('all metrics (CSV)', 'metrics.csv', 'text/csv', metricRows), saves('all data (JSON)', 'report.json', 'application/json', () => JSON.stringify(data))),
    h('div', {class: 'grid2'}, cards));
}
