// Elements, numbers as text, and the state that the parts of the page share.

const SVG = 'http://www.w3.org/2000/svg';
const COLOURS = 8;

/** Creates an element. Children are nodes or text; text is never read as HTML. */
function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith('on')) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? '' : value);
  }
  for (const child of children.flat(2)) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}

const isNumber = (x) => typeof x === 'number' && Number.isFinite(x);
const colour = (i) => `var(--c${i % COLOURS})`;

/** A number with `digits` significant digits; what is large is counted in thousands. */
function compact(x, digits = 3) {
  if (!isNumber(x)) return '-';
  const size = Math.abs(x);
  if (size === 0) return '0';
  if (size >= 1e6) return (x / 1e6).toPrecision(digits) + 'M';
  if (size >= 1e4) return (x / 1e3).toPrecision(digits) + 'k';
  if (size < 1e-4) return x.toExponential(digits - 2);
  return String(Number(x.toPrecision(digits)));
}

const percent = (x) => (isNumber(x) ? (100 * x).toFixed(1) + ' %' : '-');
const fixed = (x, digits) => (isNumber(x) ? x.toFixed(digits) : '-');
const amount = (x) => fixed(x, isNumber(x) && Math.abs(x) >= 1000 ? 0 : 1);
const signed = (x, digits) => (isNumber(x) ? (x > 0 ? '+' : '') + x.toFixed(digits) : '-');

function interval(record, key, write) {
  const low = record[key + '_low'];
  const high = record[key + '_high'];
  return isNumber(low) && isNumber(high) ? `${write(low)} to ${write(high)}` : '';
}

/** A select that calls `change` with the index chosen. */
function select(label, names, chosen, change) {
  const box = h('select', {'aria-label': label, onchange: () => change(box.selectedIndex)},
    names.map((name, i) => h('option', {value: i, selected: i === chosen}, name)));
  return box;
}

/** A button that saves a file made when it is pressed. */
function saves(label, name, type, make) {
  return h('button', {class: 'save', title: `save ${name}`, onclick: () => {
    const address = URL.createObjectURL(new Blob([make()], {type}));
    h('a', {href: address, download: name}).click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  }}, label);
}

/** Rows as CSV. */
const csv = (rows) => rows.map((row) => row.map((x) => {
  const text = String(x ?? '');
  return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}).join(',')).join('\n') + '\n';

const data = JSON.parse(document.getElementById('data').textContent);
const runs = data.runs;
const sets = seedsTogether(runs);
const several = sets.length > 1;
const setOf = runs.map((run) => sets.findIndex((set) => set.runs.includes(run)));

// State of the controls at the top, and callbacks for its changes.
const view = {hidden: new Set(), smoothing: 0.6, each: false};
// State of a served page that is kept when it reloads.
const kept = {open: [], filter: {}, ...(data.version && JSON.parse(sessionStorage.getItem(location.pathname)))};
const listeners = [];
const changed = () => listeners.forEach((listener) => listener());

const isTeam = (e) => e.team || ['untrained', 'during', 'trained'].includes(e.label || 'during');
// The trained team at other prices or budgets in its prompts.
const isTold = (e) => isNumber(e.told);
// The trained team on questions that it was trained on.
const isSeen = (e) => e.label === 'trained, training split';

/** Describes split, questions and temperature of an evaluation. */
const measured = (e) => [
  e.split && `${e.split} split`, e.questions && `${e.questions} questions`, isNumber(e.temperature) && `temperature ${e.temperature}`,
].filter(Boolean).join(', ');

/** Whether two evaluations have the same questions, samples and temperature. */
const asksAlike = (a, b) => ['split', 'questions', 'samples_per_question', 'temperature', 'spread'].every((field) => a[field] === b[field]);

/** Returns the evaluations before and after training, on the same questions if possible. */
function beforeAndAfter(run) {
  const team = run.evaluations.filter(isTeam);
  const labelled = (label) => team.filter((e) => e.label === label);
  const after = labelled('trained').pop() || team[team.length - 1];
  const untrained = labelled('untrained');
  const alike = untrained.filter((e) => asksAlike(e, after));
  const before = alike.pop() || untrained[0] || team[0];
  return {before, after: after === before ? undefined : after};
}

function section(title, hint, ...children) {
  return h('section', {}, h('h2', {}, title), hint && h('p', {class: 'hint'}, hint), children);
}
