// Transcripts: a list to search, filter and sort, with episodes of a question side by side.

const PAGE = 15;
const isRight = (t) => isNumber(t.task_score) && t.task_score >= 0.5;

const taken = (t) => t.messages.filter((m) => m.taken !== false);  // without other candidates
const sum = (t, key) => taken(t).reduce((total, m) => total + (m[key] || 0), 0);
const cost = (t) => sum(t, 'written') + sum(t, 'read');
const spoke = (t, agent, silent) => t.messages.some((m) => m.agent === agent && Boolean(m.silent) === silent);

/** Ways to sort: name, key (greatest first), whether it is known of some conversation. */
const ORDERS = [
  ['newest first', (t) => t.step ?? 0],
  ['most tokens written and read', cost],
  ['fewest tokens written and read', (t) => -cost(t)],
  ['greatest worth of messages', (t) => sum(t, 'worth'), 'worth'],
  ['least worth of messages', (t) => -sum(t, 'worth'), 'worth'],
  ['greatest reward', (t) => sum(t, 'reward'), 'reward'],
  ['least reward', (t) => -sum(t, 'reward'), 'reward'],
];

/** Gives each conversation a name for links, the same in a later report on these runs. */
function nameAll(all) {
  const taken = new Map();
  for (const t of all) {
    const parts = [runs.length > 1 && runs[t.run].name, t.label, t.step, t.question_id, t.sample];
    const name = parts.filter((x) => x || x === 0).join('-').replace(/[^\w.=-]+/g, '_');
    taken.set(name, (taken.get(name) || 0) + 1);
    t.anchor = taken.get(name) > 1 ? `${name}-${taken.get(name)}` : name;
  }
}

const origin = (t) => [runs.length > 1 && runs[t.run].name, `step ${t.step ?? '-'}`, ![t.split, `step ${t.step}`].includes(t.label) && t.label, t.split].filter(Boolean).join(' · ');
const verdict = (t) => h('span', {class: 'verdict ' + (isRight(t) ? 'good' : 'bad')}, isRight(t) ? 'right' : 'wrong');

function haystack(t) {
  const parts = [t.question, t.gold, t.answer, t.question_id];
  for (const m of t.messages) parts.push(m.agent, m.text, m.note, ...(m.observed || []));
  return parts.filter((x) => x !== null && x !== undefined).join('\n').toLowerCase();
}

/** Text with the places that match the search marked. */
function marked(text, needle) {
  const whole = String(text ?? '');
  if (!needle) return [whole];
  const parts = [];
  const lower = whole.toLowerCase();
  let at = 0;
  // Some characters change their length in lower case; then offsets do not match.
  while (lower.length === whole.length) {
    const next = lower.indexOf(needle, at);
    if (next < 0) break;
    parts.push(whole.slice(at, next), h('mark', {}, whole.slice(next, next + needle.length)));
    at = next + needle.length;
  }
  return [...parts, whole.slice(at)];
}

/** Terms of a reward beside the task score: name, field, sign. */
const TERMS = [
  ['tokens', 'token_cost', -1], ['turn', 'turn_cost', -1], ['repetition', 'repetition_cost', -1],
  ['long message', 'message_cost', -1], ['length', 'length_reward', 1],
];

/** The reward of a message and, if it is not the task score alone, its terms. */
function rewardText(m) {
  const terms = TERMS.filter(([, key]) => isNumber(m[key]) && m[key])
    .map(([name, key, sign]) => ` ${sign * m[key] < 0 ? '-' : '+'} ${name} ${fixed(Math.abs(m[key]), 3)}`);
  return `reward ${signed(m.reward, 3)}` + (terms.length ? ` = task ${fixed(m.task ?? 0, 3)}${terms.join('')}` : '');
}

/** The tokens of a message, each under its log-prob and the darker, the less likely it was. */
const tokensView = (tokens) => h('pre', {class: 'tokens'}, tokens.map(([text, logprob]) => h('ruby', {
  style: isNumber(logprob) && `--doubt:${Math.round(60 * (1 - Math.exp(logprob)))}%`,
}, text.replaceAll('\n', '\u23ce'), h('rt', {}, isNumber(logprob) ? String(Number(logprob.toFixed(2))) : 'tool'))));

/** What the model read and wrote; for records without prompts, the messages that the agent read. */
function readView(m, t) {
  const open = (what, text, tokens) => h('details', {class: 'read'}, h('summary', {}, what), h('pre', {}, text), tokens && tokensView(tokens));
  if (typeof m.prompt === 'string') {
    const own = t.messages.filter((x) => x.agent === m.agent && (x === m || x.taken !== false));
    const earlier = own.slice(0, own.indexOf(m)).flatMap((x) => [x.prompt, ...(x.tokens || [[x.text]]).map(([text]) => h('b', {}, text))]);
    return open(m.tokens ? 'prompt, and tokens with log-probs' : 'prompt', [h('span', {class: 'muted'}, earlier), m.prompt], m.tokens);
  }
  const sources = (m.read_from || []).map(([author, round]) => t.messages.find((x) => x.agent === author && x.round === round)).filter((x) => x && !x.silent);
  const what = `read ${sources.length} message${sources.length > 1 ? 's' : ''}`;
  return sources.length > 0 && open(what, sources.map((x) => `${x.agent}: ${x.text}`).join('\n'));
}

/** A click on a message opens what the model read; one that ends a selection of text does not. */
function toggleRead(event) {
  const read = event.currentTarget.parentElement.querySelector('.read');
  if (read && getSelection().isCollapsed) read.open = !read.open;
}

function messageView(m, t, agents, needle) {
  const tint = agentColour(m.agent, agents);
  const tag = (text, kind) => h('span', {class: 'tag ' + (kind || '')}, text);
  const figures = [
    m.silent ? null : `${m.written ?? '-'} written`, isNumber(m.read) ? `${m.read} read` : null,
    isNumber(m.earned) ? `earned ${signed(m.earned, 2)}` : null,
    isNumber(m.reward) ? rewardText(m) : null,
    isNumber(m.worth) ? `worth ${signed(m.worth, 2)} nats` : null,
    isNumber(m.advantage) ? `advantage ${signed(m.advantage, 2)}` : null,
    isNumber(m.logprob) ? `log-prob ${m.logprob.toFixed(2)}` : null,
  ].filter(Boolean).join('  ·  ');
  // Shade of the text by its worth to the reader: green for a gain, red for a loss.
  const shade = isNumber(m.worth) && !m.silent ? Math.min(Math.abs(m.worth) / 5, 1) : 0;
  const ground = shade ? `;--worth:color-mix(in srgb, var(--${m.worth > 0 ? 'good' : 'bad'}) ${Math.round(30 * shade)}%, transparent)` : '';
  return h('div', {class: 'message' + (m.silent ? ' silent' : ''), style: `--tint:${tint}${ground}`},
    h('div', {class: 'head'}, h('b', {}, m.agent), h('span', {class: 'muted'}, `round ${m.round ?? '-'}`),
      m.side && tag(m.side), m.silent && tag('silent', 'quiet'), m.relevant === true && tag('note relevant', 'good'), m.relevant === false && tag('note irrelevant'),
      m.taken === false && tag('not taken', 'quiet'), m.ended === false && tag('cut off at the limit', 'bad'), m.addressees && tag('to ' + (m.addressees.join(', ') || 'nobody')),
      h('span', {class: 'muted figures'}, figures)),
    m.note && h('div', {class: 'note'}, 'private note: ', marked(m.note, needle)),
    (m.observed || []).map((text) => h('div', {class: 'note'}, 'observes: ', marked(text, needle))),
    h('div', {class: m.silent ? 'nothing' : 'text', onclick: toggleRead}, m.silent ? 'says nothing' : marked(m.text, needle)), readView(m, t));
}

function talkView(t, needle, agents, titled) {
  return h('div', {}, titled && h('div', {class: 'origin'}, verdict(t), origin(t)),
    h('div', {class: 'talk'}, t.messages.map((m) => messageView(m, t, agents, needle))),
    h('div', {class: 'outcome ' + (isRight(t) ? 'good' : 'bad')},
      h('span', {}, 'team: ', h('b', {}, marked(t.answer === '' ? '(none)' : t.answer ?? '-', needle))),
      h('span', {}, 'gold: ', h('b', {}, marked(t.gold ?? '-', needle))),
      h('span', {}, `score ${isNumber(t.task_score) ? compact(t.task_score) : '-'}`),
      isNumber(t.reward) && h('span', {}, `reward ${signed(t.reward, 3)}`)));
}

/** Returns an episode; `others` are of the same question, `beside` the one of them shown first. */
function transcriptView(t, needle, open, others, beside) {
  const agents = [...new Set([t, ...others].flatMap((x) => x.messages.map((m) => m.agent)))];
  const silent = taken(t).filter((m) => m.silent).length;
  const body = h('div', {class: 'body'});
  const fillBody = () => {
    const pair = beside ? [beside, t].sort((a, b) => (a.step ?? 0) - (b.step ?? 0)) : [t];
    const titles = others.map((other) => `${origin(other)}: ${isRight(other) ? 'right' : 'wrong'}, ${sum(other, 'written')} written`);
    const choice = select('the same question elsewhere', ['nothing', ...titles], others.indexOf(beside) + 1, (i) => {
      beside = others[i - 1];
      fillBody();
    });
    body.replaceChildren(
      h('div', {class: 'question'}, marked(t.question, needle)),
      ...(others.length ? [h('div', {class: 'controls'}, h('span', {class: 'muted'}, 'beside it'), choice)] : []),
      h('div', {class: 'pair'}, pair.map((x) => talkView(x, needle, agents, pair.length > 1))));
  };
  const box = h('details', {class: 'card transcript', id: t.anchor, ontoggle: () => box.open && !body.childNodes.length && fillBody()},
    h('summary', {onclick: () => {
      kept.open = kept.open.filter((name) => name !== t.anchor).concat(box.open ? [] : t.anchor);
    }}, verdict(t),
      h('span', {class: 'excerpt'}, String(t.question ?? t.question_id ?? '').slice(0, 160)),
      h('span', {class: 'muted meta'},
        runs.length > 1 && h('i', {class: 'dot', style: `background:${colour(setOf[t.run])}`}),
        `${origin(t)} · ${sum(t, 'written')} written · ${sum(t, 'read')} read · ${silent} of ${taken(t).length} silent `,
        h('a', {href: `#${t.anchor}`, title: 'link to this conversation'}, '#'))),
    body);
  if (open || kept.open.includes(t.anchor)) {
    box.open = true;
    fillBody();
  }
  return box;
}

function transcriptsSection() {
  const all = data.transcripts;
  if (!all.length) return null;
  nameAll(all);
  const texts = new Map(all.map((t) => [t, haystack(t)]));
  const byQuestion = new Map();
  for (const t of all) byQuestion.set(t.question, [...(byQuestion.get(t.question) || []), t]);
  const others = (t) => byQuestion.get(t.question).filter((x) => x !== t).sort((a, b) => (a.step ?? 0) - (b.step ?? 0));
  const untrained = (t) => others(t).find((x) => x.run === t.run && x.label === 'untrained' && x.step < t.step);
  const unique = (values) => [...new Set(values.filter(Boolean))];
  const labels = unique(all.map((t) => t.label));
  const agents = unique(all.flatMap((t) => t.messages.map((m) => m.agent)));
  const orders = ORDERS.filter(([, , key]) => !key || all.some((t) => t.messages.some((m) => isNumber(m[key]))));
  const filter = {text: '', verdict: 0, silence: 0, agent: '', run: '', label: '', order: '', pairs: 0, from: null, to: null, ...kept.filter};
  kept.filter = filter;
  let shown = PAGE;
  const list = h('div', {});
  const count = h('span', {class: 'muted'});
  const more = h('button', {onclick: () => {
    shown += PAGE;
    refresh();
  }});
  const search = h('input', {type: 'search', value: filter.text, placeholder: 'search what was asked and said', 'aria-label': 'search transcripts', oninput: () => set('text', search.value.trim().toLowerCase())});
  function set(key, value) {
    filter[key] = value;
    shown = PAGE;
    refresh();
  }
  // By name: a later report may list others before it.
  const choice = (key, label, all, values, names = values) =>
    values.length > 1 && select(label, [all, ...names], values.indexOf(filter[key]) + 1, (i) => set(key, values[i - 1] ?? ''));
  const step = (key, label) => {
    const box = h('input', {type: 'number', min: 0, value: filter[key], placeholder: label, 'aria-label': label, oninput: () => set(key, box.value === '' ? null : Number(box.value))});
    return box;
  };
  function isSilent(t, silent) {
    if (filter.agent) return spoke(t, filter.agent, silent);
    return t.messages.some((m) => m.silent) === silent;
  }
  function matches(t) {
    return (!filter.text || texts.get(t).includes(filter.text))
      && (filter.verdict === 0 || isRight(t) === (filter.verdict === 1))
      && (filter.silence === 0 ? !filter.agent || t.messages.some((m) => m.agent === filter.agent) : isSilent(t, filter.silence === 1))
      && (!filter.run || runs[t.run].name === filter.run)
      && (!filter.label || t.label === filter.label)
      && (filter.pairs === 0 || untrained(t))
      && (filter.from === null || t.step >= filter.from) && (filter.to === null || t.step <= filter.to);
  }
  function refresh() {
    const [, key] = orders.find(([name]) => name === filter.order) || orders[0];
    const found = all.filter(matches).sort((a, b) => key(b) - key(a));
    const linked = all.find((t) => location.hash === `#${t.anchor}`);
    // A linked conversation comes first, whatever the filters are.
    const listed = [linked, ...found.slice(0, shown).filter((t) => t !== linked)].filter(Boolean);
    list.replaceChildren(...listed.map((t, i) =>
      transcriptView(t, filter.text, i === 0 || (filter.text && i < 5), others(t), filter.pairs ? untrained(t) : null)));
    count.textContent = `${found.length} of ${all.length}`;
    more.hidden = found.length <= shown;
    more.textContent = `show ${Math.min(PAGE, found.length - shown)} more`;
  }
  const follow = () => {
    refresh();
    document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();
  };
  addEventListener('hashchange', follow);
  if (location.hash) listeners.push(() => setTimeout(follow));
  const recorded = runs.reduce((total, run) => total + run.transcripts, 0);
  const hint = recorded > all.length ? `${all.length} of ${recorded} recorded episodes: some of each evaluation, the newest, and some of the earlier ones` : `${all.length} recorded episodes`;
  const made = section('Transcripts', hint,
    h('div', {class: 'controls'}, search,
      select('right or wrong', ['right and wrong', 'right', 'wrong'], filter.verdict, (i) => set('verdict', i)),
      choice('agent', 'agent', 'all agents', agents),
      select('silence', ['silent or not', 'silent', 'not silent'], filter.silence, (i) => set('silence', i)),
      choice('run', 'run', 'all runs', runs.map((run) => run.name)),
      choice('label', 'which evaluation', 'all evaluations', labels, labels.map((label) => (label === 'train' ? 'none: training' : label))),
      select('order', orders.map(([name]) => name), Math.max(orders.findIndex(([name]) => name === filter.order), 0), (i) => set('order', orders[i][0])),
      all.some(untrained) && select('side by side', ['one by one', 'beside the untrained team'], filter.pairs, (i) => set('pairs', i)),
      step('from', 'from step'), step('to', 'to step'), count),
    list, more);
  refresh();
  return made;
}
