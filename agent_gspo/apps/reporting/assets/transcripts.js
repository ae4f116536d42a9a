// What the agents said: a list to search and filter.

const PAGE = 15;
const isRight = (t) => isNumber(t.task_score) && t.task_score >= 0.5;

function haystack(t) {
  const parts = [t.question, t.gold, t.answer, t.question_id];
  for (const m of t.messages) parts.push(m.agent, m.text, m.note);
  return parts.filter((x) => x !== null && x !== undefined).join('\n').toLowerCase();
}

/** Text with the places that match the search marked. */
function marked(text, needle) {
  const whole = String(text ?? '');
  if (!needle) return [whole];
  const parts = [];
  const lower = whole.toLowerCase();
  let at = 0;
  // Some characters change their length in lower case; then the places do not fit.
  while (lower.length === whole.length) {
    const next = lower.indexOf(needle, at);
    if (next < 0) break;
    parts.push(whole.slice(at, next), h('mark', {}, whole.slice(next, next + needle.length)));
    at = next + needle.length;
  }
  return [...parts, whole.slice(at)];
}

function messageView(m, agents, needle) {
  const tint = agentColour(m.agent, agents);
  const tag = (text, kind) => h('span', {class: 'tag ' + (kind || '')}, text);
  const figures = [
    m.silent ? null : `${m.written ?? '-'} written`, isNumber(m.read) ? `${m.read} read` : null,
    isNumber(m.reward) ? `reward ${signed(m.reward, 3)}` : null,
    isNumber(m.worth) ? `worth ${signed(m.worth, 2)} nats` : null,
    isNumber(m.advantage) ? `advantage ${signed(m.advantage, 2)}` : null,
  ].filter(Boolean).join('  ·  ');
  // What its reader gained by it, as a shade of the text: green for a gain, red for a loss.
  const shade = isNumber(m.worth) && !m.silent ? Math.min(Math.abs(m.worth) / 5, 1) : 0;
  const ground = shade ? `;--worth:color-mix(in srgb, var(--${m.worth > 0 ? 'good' : 'bad'}) ${Math.round(30 * shade)}%, transparent)` : '';
  return h('div', {class: 'message' + (m.silent ? ' silent' : ''), style: `--tint:${tint}${ground}`},
    h('div', {class: 'head'}, h('b', {}, m.agent), h('span', {class: 'muted'}, `round ${m.round ?? '-'}`),
      m.silent && tag('silent', 'quiet'), m.relevant === true && tag('note relevant', 'good'), m.relevant === false && tag('note irrelevant'),
      m.ended === false && tag('cut off at the limit', 'bad'), h('span', {class: 'muted figures'}, figures)),
    m.note && h('div', {class: 'note'}, 'private note: ', marked(m.note, needle)),
    m.silent ? h('div', {class: 'nothing'}, 'says nothing') : h('div', {class: 'text'}, marked(m.text, needle)));
}

function transcriptView(t, needle, open) {
  const agents = [...new Set(t.messages.map((m) => m.agent))];
  const written = t.messages.reduce((sum, m) => sum + (m.written || 0), 0);
  const read = t.messages.reduce((sum, m) => sum + (m.read || 0), 0);
  const silent = t.messages.filter((m) => m.silent).length;
  const body = h('div', {class: 'body'});
  const fillBody = () => {
    if (body.childNodes.length) return;
    body.append(
      h('div', {class: 'question'}, marked(t.question, needle)),
      h('div', {class: 'talk'}, t.messages.map((m) => messageView(m, agents, needle))),
      h('div', {class: 'outcome ' + (isRight(t) ? 'good' : 'bad')},
        h('span', {}, 'team: ', h('b', {}, marked(t.answer === '' ? '(none)' : t.answer ?? '-', needle))),
        h('span', {}, 'gold: ', h('b', {}, marked(t.gold ?? '-', needle))),
        h('span', {}, `score ${isNumber(t.task_score) ? compact(t.task_score) : '-'}`),
        isNumber(t.reward) && h('span', {}, `reward ${signed(t.reward, 3)}`)));
  };
  const box = h('details', {class: 'card transcript', ontoggle: () => box.open && fillBody()},
    h('summary', {},
      h('span', {class: 'verdict ' + (isRight(t) ? 'good' : 'bad')}, isRight(t) ? 'right' : 'wrong'),
      h('span', {class: 'excerpt'}, String(t.question ?? t.question_id ?? '').slice(0, 160)),
      h('span', {class: 'muted meta'},
        several && h('i', {class: 'dot', style: `background:${colour(t.run)}`, title: runs[t.run].name}),
        `step ${t.step ?? '-'}${t.label && t.label !== t.split ? ' · ' + t.label : ''}${t.split ? ' · ' + t.split : ''} · ${written} written · ${read} read · ${silent} of ${t.messages.length} silent`)),
    body);
  if (open) {
    box.open = true;
    fillBody();
  }
  return box;
}

function transcriptsSection() {
  const all = [...data.transcripts].sort((a, b) => (b.step ?? 0) - (a.step ?? 0));
  if (!all.length) return null;
  const texts = all.map(haystack);
  const filter = {text: '', verdict: 0, silence: 0, run: 0, split: 0, label: 0, from: null, to: null};
  const splits = [...new Set(all.map((t) => t.split).filter(Boolean))];
  const labels = [...new Set(all.map((t) => t.label).filter(Boolean))];
  let shown = PAGE;
  const list = h('div', {});
  const count = h('span', {class: 'muted'});
  const more = h('button', {onclick: () => {
    shown += PAGE;
    refresh();
  }});
  const search = h('input', {type: 'search', placeholder: 'search what was asked and said', 'aria-label': 'search transcripts', oninput: () => set('text', search.value.trim().toLowerCase())});
  function set(key, value) {
    filter[key] = value;
    shown = PAGE;
    refresh();
  }
  const step = (key, label) => {
    const box = h('input', {type: 'number', min: 0, placeholder: label, 'aria-label': label, oninput: () => set(key, box.value === '' ? null : Number(box.value))});
    return box;
  };
  function matches(t, i) {
    const silent = t.messages.some((m) => m.silent);
    return (!filter.text || texts[i].includes(filter.text))
      && (filter.verdict === 0 || isRight(t) === (filter.verdict === 1))
      && (filter.silence === 0 || silent === (filter.silence === 1))
      && (filter.run === 0 || t.run === filter.run - 1)
      && (filter.split === 0 || t.split === splits[filter.split - 1])
      && (filter.label === 0 || t.label === labels[filter.label - 1])
      && (filter.from === null || t.step >= filter.from) && (filter.to === null || t.step <= filter.to);
  }
  function refresh() {
    const found = all.filter(matches);
    list.replaceChildren(...found.slice(0, shown).map((t, i) => transcriptView(t, filter.text, i === 0 || (filter.text && i < 5))));
    count.textContent = `${found.length} of ${all.length}`;
    more.hidden = found.length <= shown;
    more.textContent = `show ${Math.min(PAGE, found.length - shown)} more`;
  }
  const kept = runs.reduce((sum, run) => sum + run.transcripts, 0);
  const hint = kept > all.length ? `${all.length} of ${kept} recorded episodes: the newest, and some of the earlier ones; newest first` : `${all.length} recorded episodes, newest first`;
  const made = section('Transcripts', hint,
    h('div', {class: 'controls'}, search,
      select('right or wrong', ['right and wrong', 'right', 'wrong'], 0, (i) => set('verdict', i)),
      select('silence', ['with and without silence', 'someone silent', 'nobody silent'], 0, (i) => set('silence', i)),
      several && select('run', ['all runs', ...runs.map((run) => run.name)], 0, (i) => set('run', i)),
      splits.length > 1 && select('split', ['all splits', ...splits], 0, (i) => set('split', i)),
      labels.length > 1 && select('which evaluation', ['all evaluations', ...labels.map((label) => (label === 'train' ? 'none: training' : label))], 0, (i) => set('label', i)),
      step('from', 'from step'), step('to', 'to step'), count),
    list, more);
  refresh();
  return made;
}
