// Puts the page together.

function toggleTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  root.dataset.theme = dark ? 'light' : 'dark';
}

function header() {
  const steps = Math.max(0, ...runs.map((run) => run.steps[run.steps.length - 1] || 0));
  const title = runs.length > 1 ? `${runs.length} runs` : runs[0].name;
  return h('header', {}, h('div', {}, h('h1', {}, title),
    h('p', {class: 'hint'}, `agent_gspo report · ${steps} steps · ${data.written}${data.version ? ' · updates with the files' : ''}`)),
    h('button', {onclick: toggleTheme, 'aria-label': 'light or dark'}, 'light / dark'));
}

function runBar() {
  if (!several) return null;
  const chips = sets.map((run, i) => {
    const chip = h('button', {class: 'chip', 'aria-pressed': 'true', onclick: () => {
      view.hidden.has(i) ? view.hidden.delete(i) : view.hidden.add(i);
      chip.setAttribute('aria-pressed', String(!view.hidden.has(i)));
      changed();
    }}, h('i', {class: 'dot', style: `background:${colour(i)}`}), run.name);
    return chip;
  });
  return h('nav', {'aria-label': 'runs shown in the curves'}, chips);
}

/** Reloads a served page when its files have changed; `kept` survives this. */
function follow() {
  if (!data.version) return;
  scrollTo(0, kept.scroll || 0);
  addEventListener('pagehide', () => sessionStorage.setItem(location.pathname, JSON.stringify({...kept, scroll: scrollY})));
  setInterval(async () => {
    const answer = await fetch('/', {method: 'HEAD', cache: 'no-store'}).catch(() => null);
    if (answer?.ok && answer.headers.get('ETag') !== data.version) location.reload();
  }, 5000);
}

/** Replaces a part that cannot be drawn by its error, so that the rest of the page is shown. */
function attempt(name, build) {
  try {
    return build();
  } catch (error) {
    console.error(error);
    return h('p', {class: 'hint'}, `${name} could not be drawn: ${error}`);
  }
}

const PARTS = [
  ['The title', header], ['The choice of runs', runBar], ['Before and after training', summarySection],
  ['Learning curves', curvesSection], ['Agents', agentsSection], ['Transcripts', transcriptsSection], ['Configuration', configSection], ['Provenance', aboutSection],
];
const page = document.getElementById('page');
page.append(...PARTS.map(([name, build]) => attempt(name, build)).filter(Boolean));
// Charts have a width only now. Drawing before their observers fire avoids an empty frame.
changed();
follow();
