// Puts the page together.

function toggleTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  root.dataset.theme = dark ? 'light' : 'dark';
}

function header() {
  const steps = Math.max(0, ...runs.map((run) => run.steps[run.steps.length - 1] || 0));
  const title = several ? `${runs.length} runs` : runs[0].name;
  return h('header', {}, h('div', {}, h('h1', {}, title),
    h('p', {class: 'hint'}, `agent_gspo report · ${steps} steps · ${data.written}`)),
    h('button', {onclick: toggleTheme, 'aria-label': 'light or dark'}, 'light / dark'));
}

function runBar() {
  if (!several) return null;
  const chips = runs.map((run, i) => {
    const chip = h('button', {class: 'chip', 'aria-pressed': 'true', onclick: () => {
      view.hidden.has(i) ? view.hidden.delete(i) : view.hidden.add(i);
      chip.setAttribute('aria-pressed', String(!view.hidden.has(i)));
      changed();
    }}, h('i', {class: 'dot', style: `background:${colour(i)}`}), run.name);
    return chip;
  });
  return h('nav', {'aria-label': 'runs shown in the curves'}, chips);
}

const page = document.getElementById('page');
page.append(...[header(), runBar(), summarySection(), curvesSection(), agentsSection(), transcriptsSection(), configSection()].filter(Boolean));
// Only now have the charts a width. Drawn before their observers report it, no frame is empty.
changed();
