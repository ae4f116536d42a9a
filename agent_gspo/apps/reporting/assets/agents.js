// Tokens that each agent writes and reads, and the graph of messages.

/** Returns the color of an agent, by its name's place in the sorted team, in the whole report. */
const agentColour = (name, names) => colour(Math.max(0, [...names].sort().indexOf(name)));

function bars(title, team, names, rows, write, most) {
  const bar = (value, tint, faint) => h('div', {class: 'bar'},
    h('div', {style: `width:${isNumber(value) ? Math.max(0.5, (100 * value) / most) : 0}%;background:${tint};opacity:${faint ? 0.4 : 1}`}),
    h('span', {}, write(value)));
  return h('div', {class: 'card bars'}, h('h4', {}, title), names.map((name, i) =>
    h('div', {class: 'row'}, h('span', {class: 'name'}, name), h('div', {},
      rows[i].length > 1 && bar(rows[i][0], agentColour(name, team), true), bar(rows[i][rows[i].length - 1], agentColour(name, team), false)))));
}

function agentBars(run) {
  const {before, after} = beforeAndAfter(run);
  const records = [before, after].filter((e) => e && (e.agents || []).length);
  if (!records.length) return null;
  const names = [...new Set(records.flatMap((e) => e.agents.map((a) => a.name)))];
  const values = (key) => names.map((name) => records.map((e) => (e.agents.find((a) => a.name === name) || {})[key]));
  const most = (rows) => Math.max(1e-9, ...rows.flat().filter(isNumber));
  const written = values('written_per_question');
  const read = values('read_per_question');
  const cards = [
    bars('Tokens written per question', names, names, written, amount, most(written)),
    bars('Tokens read per question', names, names, read, amount, most(read)),
  ];
  const relevant = values('silence_rate_relevant');
  const irrelevant = values('silence_rate_irrelevant');
  // Both cards show the same agents, even if one never had a note of one kind.
  const held = names.map((_, i) => [...relevant[i], ...irrelevant[i]].some(isNumber));
  if (held.some(Boolean)) {
    const ofHolders = (all) => all.filter((_, i) => held[i]);
    cards.push(bars('Silent turns, note relevant', names, ofHolders(names), ofHolders(relevant), percent, 1));
    cards.push(bars('Silent turns, note irrelevant', names, ofHolders(names), ofHolders(irrelevant), percent, 1));
  } else {
    cards.push(bars('Silent turns', names, names, values('silence_rate'), percent, 1));
  }
  const alike = records.length < 2 || measured(before) === measured(after);
  const told = (e) => `${e.label} (step ${e.step}${alike ? '' : `, ${measured(e)}`})`;
  return h('div', {}, h('p', {class: 'hint'}, records.length > 1 ? `pale: ${told(before)}; full: ${told(after)}` : `${records[0].label}, step ${records[0].step}`),
    h('div', {class: 'grid4'}, cards));
}

function readersGraph(edges, of) {
  if (!edges.length) return null;
  const names = [...new Set(edges.flatMap((e) => [e.author, e.reader]))].sort();
  const size = 300;
  const radius = 96;
  const place = (name) => {
    const angle = (2 * Math.PI * names.indexOf(name)) / names.length - Math.PI / 2;
    return [size / 2 + radius * 1.25 * Math.cos(angle), size / 2 + radius * Math.sin(angle)];
  };
  const heights = names.map((name) => place(name)[1]);
  const top = Math.min(...heights) - 48;
  const most = Math.max(1e-9, ...edges.map((e) => e.tokens));
  const arrows = edges.filter((e) => e.tokens > 0.01 * most).map((edge) => {
    const [ax, ay] = place(edge.author);
    const [bx, by] = place(edge.reader);
    const length = Math.hypot(bx - ax, by - ay) || 1;
    const [ux, uy] = [(bx - ax) / length, (by - ay) / length];
    const bend = 16;
    const [mx, my] = [(ax + bx) / 2 - uy * bend, (ay + by) / 2 + ux * bend];
    const width = 1 + (5 * edge.tokens) / most;
    const tint = colour(names.indexOf(edge.author));
    // The arrow ends at the rim of the reader's disc.
    const toward = Math.hypot(bx - mx, by - my) || 1;
    const [dx, dy] = [(bx - mx) / toward, (by - my) / toward];
    const [ex, ey] = [bx - 20 * dx, by - 20 * dy];
    const tip = 7 + width;
    const [wx, wy] = [ex - tip * dx, ey - tip * dy];
    return [
      svg('path', {d: `M${ax} ${ay}Q${mx} ${my} ${wx} ${wy}`, fill: 'none', stroke: tint, 'stroke-width': width, opacity: 0.75},
        svg('title', {}, `${edge.author} to ${edge.reader}: ${amount(edge.tokens)} tokens per episode`)),
      svg('polygon', {points: `${ex},${ey} ${wx - (dy * tip) / 2},${wy + (dx * tip) / 2} ${wx + (dy * tip) / 2},${wy - (dx * tip) / 2}`, fill: tint}),
    ];
  });
  const discs = names.map((name, i) => {
    const [x, y] = place(name);
    const below = y >= size / 2 - 1;
    return [
      svg('circle', {cx: x, cy: y, r: 16, fill: colour(i)}),
      svg('text', {class: 'node', x, y: below ? y + 32 : y - 23, 'text-anchor': 'middle'}, name),
    ];
  });
  const table = h('table', {},
    h('thead', {}, h('tr', {}, ['from', 'to'].map((x) => h('th', {}, x)),
      ['messages', 'tokens', 'silent', 'to others'].map((x) => h('th', {class: 'n'}, x)))),
    h('tbody', {}, edges.map((e) => h('tr', {}, h('td', {}, e.author), h('td', {}, e.reader),
      h('td', {class: 'n'}, fixed(e.told, 2)), h('td', {class: 'n'}, amount(e.tokens)), h('td', {class: 'n'}, percent(1 - e.said / e.turns)), h('td', {class: 'n'}, percent((e.said - e.told) / e.turns))))));
  const told = [of.label || 'during', isNumber(of.step) && `step ${of.step}`, of.split && `${of.split} split`].filter(Boolean).join(', ');
  return h('div', {}, h('h3', {}, 'Who reads whom'),
    h('p', {class: 'hint'}, `per episode, mean over one evaluation: ${told} (the newest of the trained team, else during training, else of the untrained team); silent and to others: shares of the turns`),
    h('div', {class: 'card readers'}, svg('svg', {viewBox: `-30 ${top} ${size + 60} ${Math.max(...heights) + 44 - top}`, role: 'img', 'aria-label': 'who reads whom'}, arrows, discs), h('div', {class: 'scroll'}, table)));
}

function agentsSection() {
  const content = (run) => [agentBars(run), readersGraph(run.edges, run.edges_of)].filter(Boolean);
  const known = runs.filter((run) => content(run).length);
  if (!known.length) return null;
  const place = h('div', {}, content(known[0]));
  const picker = known.length > 1 && select('which run', known.map((run) => run.name), 0, (i) => place.replaceChildren(...content(known[i])));
  return section('Agents', null, picker && h('div', {class: 'controls'}, picker), place);
}
