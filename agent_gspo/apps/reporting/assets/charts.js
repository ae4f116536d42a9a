// Small charts in SVG: lines with bands, stacked areas and points with whiskers.

const LETTER = 6.3;  // width of a letter of a tick or label

function ticks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const power = Math.pow(10, Math.floor(Math.log10(rough)));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const result = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) {
    result.push(Number((i * step).toPrecision(12)));
  }
  return result;
}

/** Labels with as many decimals as tell neighbouring ticks apart. */
function tickLabels(marks, unit) {
  const scale = unit === '%' ? 100 : 1;
  const step = marks.length > 1 ? (marks[1] - marks[0]) * scale : Math.abs(marks[0] * scale) || 1;
  let decimals = 0;
  while (decimals < 10 && Math.abs(step * 10 ** decimals - Math.round(step * 10 ** decimals)) > 1e-6) decimals++;
  const write = (x) => (Math.abs(x) >= 1e4 || (decimals > 5 && x) ? compact(x) : x.toFixed(decimals));
  return marks.map((x) => write(x * scale) + (unit === '%' ? ' %' : ''));
}

/** Exponential moving average without the bias of its first value; gaps stay gaps. */
function smooth(values, weight) {
  if (!weight) return values;
  let sum = 0;
  let total = 0;
  return values.map((x) => {
    if (!isNumber(x)) return null;
    sum = weight * sum + x;
    total = weight * total + 1;
    return sum / total;
  });
}

function extent(numbers) {
  let low = Infinity;
  let high = -Infinity;
  for (const x of numbers) {
    if (x < low) low = x;
    if (x > high) high = x;
  }
  return [low, high];
}

/**
 * A chart that redraws when its width or its data change.
 * spec() returns {lines, tracks, points, areas, unit, xLabel, xZero, xMargin, zero, most}:
 *   lines: [{name, colour, dash, x: [], y: [], raw: [], faint, low: [], high: []}], raw: what y smooths;
 *     faint: drawn, too; low, high: of a band
 *   tracks: lines whose x is no step, so that there is nothing to hover over
 *   points: [{name, colour, x, y, low, high, hollow, square, label}]
 *   areas: [{name, colour, x: [], y: []}], drawn on top of each other.
 */
function chart(title, spec, extra) {
  const frame = h('div', {class: 'plot'});
  const tip = h('div', {class: 'tip', hidden: true});
  const legend = h('div', {class: 'legend'});
  const card = h('figure', {class: 'card chart'},
    h('figcaption', {}, h('span', {}, title),
      h('span', {class: 'saves'},
        saves('CSV', `${title}.csv`, 'text/csv', () => chartRows(spec())),
        saves('SVG', `${title}.svg`, 'image/svg+xml', () => drawing(frame.querySelector('svg'), legend, title))), extra),
    frame, legend, tip);
  let width = 0;
  const draw = () => {
    width = frame.clientWidth;
    if (width < 80) return;
    const content = spec();
    tip.hidden = true;
    drawChart(frame, legend, tip, card, width, title, content);
  };
  new ResizeObserver(() => {
    if (frame.clientWidth !== width) draw();
  }).observe(frame);
  listeners.push(draw);
  return {card, draw};
}

/** What a chart shows, as measured, a row a value. */
function chartRows({lines = [], points = [], areas = [], xLabel = 'step'}) {
  const rows = [...lines, ...areas].flatMap((l) => l.x.map((x, i) => [l.name, x, (l.raw || l.y)[i], (l.ends?.[0] ?? l.low)?.[i], (l.ends?.[1] ?? l.high)?.[i]]));
  return csv([['name', xLabel, 'value', 'low', 'high'], ...rows.filter((row) => isNumber(row[2])),
    ...points.map((p) => [p.name, p.x, p.y, p.low, p.high])]);
}

/** A copy of a node with its computed style, which does not depend on the page. */
function standalone(node) {
  const copy = node.cloneNode(true);
  const originals = [node, ...node.querySelectorAll('*')];
  [copy, ...copy.querySelectorAll('*')].forEach((part, i) => {
    const style = getComputedStyle(originals[i]);
    for (const key of ['fill', 'stroke', 'stroke-width', 'stroke-dasharray', 'opacity', 'font-size']) part.style.setProperty(key, style.getPropertyValue(key));
  });
  return copy;
}

/** A drawing as a file of its own: with its colours, title and legend, and the runs if there are several. */
function drawing(picture, legend, title) {
  if (!picture) return '';
  const copy = standalone(picture);
  const [width, height] = ['width', 'height'].map((key) => Number(picture.getAttribute(key)));
  const dots = [...document.querySelectorAll('.chip[aria-pressed=true]')].map((chip) => [
    svg('rect', {y: 1, width: 22, height: 9, fill: getComputedStyle(chip.querySelector('.dot')).backgroundColor}), chip.textContent]);
  const marks = [...legend.children].map((item) => [standalone(item.querySelector('svg *')), item.textContent]);
  const rows = [[null, title], ...dots, ...marks];
  rows.forEach(([mark, name], i) => copy.append(svg('g', {transform: `translate(8 ${height + 10 + 18 * i})`}, mark,
    svg('text', {x: mark ? 30 : 0, y: 9, style: `font-size:12px;font-weight:${mark ? 400 : 600};fill:#666`}, name))));
  for (const [key, value] of Object.entries({xmlns: SVG, width, height: height + 18 * rows.length + 12, 'font-family': 'sans-serif'})) copy.setAttribute(key, value);
  return new XMLSerializer().serializeToString(copy);
}

function drawChart(frame, legend, tip, card, width, title, content) {
  const {lines = [], tracks = [], points = [], areas = [], unit = '', xLabel = 'step'} = content;
  const stacked = stack(areas);
  const xs = [...lines, ...areas].flatMap((l) => l.x).concat(points.map((p) => p.x));
  const ys = lines.flatMap((l) => [...l.y, ...(l.faint ? l.raw : []), ...(l.low || []), ...(l.high || [])]).filter(isNumber)
    .concat(points.flatMap((p) => [p.y, p.low, p.high]).filter(isNumber))
    .concat(stacked.flatMap((a) => a.top));
  legend.replaceChildren(...legendItems(lines, points, areas));
  if (!xs.length || !ys.length) {
    frame.replaceChildren(h('div', {class: 'empty'}, 'nothing recorded'));
    return;
  }
  const height = 220;
  let [low, high] = extent(ys);
  if (content.zero || areas.length) low = Math.min(0, low);
  if (isNumber(content.most)) high = Math.min(high, content.most);
  if (high === low) {
    high += Math.abs(high) * 0.05 || 1;
    low -= content.zero ? 0 : Math.abs(low) * 0.05 || 1;
  }
  const pad = (high - low) * 0.05;
  high += pad;
  if (!(low === 0)) low -= pad;
  let [left, right] = extent(xs);
  if (content.xZero) left = Math.min(0, left);
  if (content.xMargin) right += (right - left) * 0.06 || 1;
  if (left === right) [left, right] = [left - 0.5, right + 0.5];
  const yTicks = ticks(low, high, 4);
  const yLabels = tickLabels(yTicks, unit);
  const xTicks = ticks(left, right, Math.max(2, Math.floor(width / 90)));
  const xLabels = tickLabels(xTicks, '');
  const margin = {
    left: 14 + LETTER * Math.max(...yLabels.map((label) => label.length)),
    // The last tick may stand at the edge, and half of its label beyond.
    right: Math.max(10, 2 + (LETTER / 2) * (xLabels[xLabels.length - 1] || '').length), top: 8, bottom: 34,
  };
  const px = (x) => margin.left + ((x - left) / (right - left)) * (width - margin.left - margin.right);
  const py = (y) => height - margin.bottom - ((y - low) / (high - low)) * (height - margin.top - margin.bottom);
  const id = 'clip' + Math.random().toString(36).slice(2);
  const plot = svg('g', {'clip-path': `url(#${id})`});
  const picture = svg('svg', {width, height, role: 'img', 'aria-label': title},
    svg('clipPath', {id}, svg('rect', {
      x: margin.left - 7, y: 0, width: width - margin.left - margin.right + 14,
      height: height - margin.bottom + 6,
    })),
    yTicks.map((t, i) => [
      svg('line', {class: 'grid', x1: margin.left, x2: width - margin.right, y1: py(t), y2: py(t)}),
      svg('text', {class: 'tick', x: margin.left - 6, y: py(t) + 4, 'text-anchor': 'end'}, yLabels[i]),
    ]),
    xTicks.map((t, i) =>
      svg('text', {class: 'tick', x: px(t), y: height - margin.bottom + 15, 'text-anchor': 'middle'}, xLabels[i])),
    svg('text', {class: 'tick', x: (margin.left + width - margin.right) / 2, y: height - 4, 'text-anchor': 'middle'}, xLabel),
    plot);
  for (const area of stacked) {
    const upper = area.x.map((x, i) => `${px(x)},${py(area.top[i])}`);
    const lower = area.x.map((x, i) => `${px(x)},${py(area.bottom[i])}`).reverse();
    plot.append(svg('polygon', {points: upper.concat(lower).join(' '), fill: area.colour, opacity: 0.75}));
  }
  for (const line of [...tracks, ...lines]) {
    const common = {fill: 'none', stroke: line.colour, 'stroke-linejoin': 'round'};
    if (line.low) plot.append(band(line, px, py));
    if (line.faint) plot.append(svg('path', {...common, d: path(line.x, line.raw, px, py), opacity: 0.22}));
    plot.append(svg('path', {
      ...common, d: path(line.x, line.y, px, py), 'stroke-width': 2, 'stroke-dasharray': line.dash,
    }));
  }
  for (const point of points) drawPoint(plot, point, px, py);
  labelPoints(plot, points, px, py, {left: margin.left, right: width - margin.right, top: 0, bottom: height - margin.bottom + 6});
  if (lines.length || areas.length) {
    const write = unit === '%' ? percent : (x) => compact(x, 5);
    hover(picture, card, tip, lines.length ? lines : areas, px, write, margin, height);
  }
  frame.replaceChildren(picture);
}

function stack(areas) {
  let below = areas.length ? areas[0].x.map(() => 0) : [];
  return areas.map((area) => {
    const bottom = below;
    const top = area.y.map((y, i) => bottom[i] + (isNumber(y) ? Math.max(0, y) : 0));
    below = top;
    return {...area, bottom, top};
  });
}

function band(line, px, py) {
  const known = line.x.map((_, i) => i).filter((i) => isNumber(line.low[i]) && isNumber(line.high[i]));
  const edge = (places, ends) => places.map((i) => `${px(line.x[i])},${py(ends[i])}`);
  const corners = [...edge(known, line.high), ...edge(known.reverse(), line.low)];
  return svg('polygon', {points: corners.join(' '), fill: line.colour, opacity: 0.15});
}

function path(x, y, px, py) {
  let result = '';
  let pen = false;
  for (let i = 0; i < x.length; i++) {
    if (isNumber(y[i])) {
      result += `${pen ? 'L' : 'M'}${px(x[i]).toFixed(1)} ${py(y[i]).toFixed(1)}`;
      // A value without neighbours would be invisible as a line.
      if (!pen && !isNumber(y[i + 1])) result += 'h.1';
    }
    pen = isNumber(y[i]);
  }
  return result;
}

function drawPoint(plot, point, px, py) {
  const x = px(point.x);
  if (isNumber(point.low) && isNumber(point.high)) {
    plot.append(svg('line', {x1: x, x2: x, y1: py(point.low), y2: py(point.high), stroke: point.colour, 'stroke-width': 1.5}));
  }
  const mark = pointMark(point, x, py(point.y), 4.5, point.colour, 'var(--card)');
  mark.append(svg('title', {}, point.name));
  plot.append(mark);
}

function pointMark(point, x, y, r, tint, inside) {
  const paint = {stroke: tint, 'stroke-width': 2, fill: point.hollow ? inside : tint};
  if (!point.square) return svg('circle', {cx: x, cy: y, r, ...paint});
  return svg('rect', {x: x - 0.8 * r, y: y - 0.8 * r, width: 1.6 * r, height: 1.6 * r, ...paint});
}

/** Labels beside their points, where they fit into the frame and on no other point or label. */
function labelPoints(plot, points, px, py, frame) {
  const box = (left, right, top, bottom) => ({left, right, top, bottom});
  const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
  const taken = points.map((p) => box(px(p.x) - 6, px(p.x) + 6, py(p.y) - 6, py(p.y) + 6));
  for (const point of points.filter((p) => p.label)) {
    const [x, y] = [px(point.x), py(point.y)];
    const size = LETTER * point.label.length;
    const late = x > (frame.left + frame.right) / 2;  // to its right there is less room
    const places = [4, -9, 17, -20, 28].flatMap((down) => [late, !late].map((end) => {
      const from = end ? x - 8 - size : x + 8;
      return {x: end ? x - 8 : x + 8, y: y + down, end, box: box(from, from + size, y + down - 10, y + down + 2)};
    }));
    const inside = ({box: b}) => b.left >= frame.left && b.right <= frame.right && b.top >= frame.top && b.bottom <= frame.bottom;
    const free = (place) => !taken.some((other) => meet(place.box, other));
    const place = places.find((p) => inside(p) && free(p)) || places.find(inside) || places[0];
    taken.push(place.box);
    plot.append(svg('text', {class: 'tick halo', x: place.x, y: place.y, 'text-anchor': place.end ? 'end' : 'start'}, point.label));
  }
}

function legendItems(lines, points, areas) {
  const items = new Map();
  for (const line of lines) {
    if (line.legend) items.set(line.legend, svg('line', {x1: 0, x2: 22, y1: 5, y2: 5, stroke: line.legendColour || line.colour, 'stroke-width': 2.5, 'stroke-dasharray': line.dash}));
  }
  for (const area of areas) items.set(area.name, svg('rect', {width: 22, height: 10, fill: area.colour, opacity: 0.75}));
  for (const point of points) {
    if (point.legend) items.set(point.legend, pointMark(point, 11, 5, 4, 'currentColor', 'none'));
  }
  return [...items].map(([name, mark]) => h('span', {}, svg('svg', {width: 22, height: 10}, mark), name));
}

/** A line that follows the pointer, with the values at its step. */
function hover(picture, card, tip, lines, px, write, margin, height) {
  const cursor = svg('line', {class: 'cursor', y1: margin.top, y2: height - margin.bottom, visibility: 'hidden'});
  picture.append(cursor);
  const steps = [...new Set(lines.flatMap((l) => l.x))].sort((a, b) => a - b);
  const leave = () => {
    tip.hidden = true;
    cursor.setAttribute('visibility', 'hidden');
  };
  picture.addEventListener('pointerleave', leave);
  picture.addEventListener('pointermove', (event) => {
    const box = picture.getBoundingClientRect();
    const at = event.clientX - box.left;
    let step = steps[0];
    for (const s of steps) if (Math.abs(px(s) - at) < Math.abs(px(step) - at)) step = s;
    const rows = lines.flatMap((line) => {
      const i = line.x.indexOf(step);
      if (i < 0 || !isNumber(line.y[i])) return [];
      const {colour: tint, name} = line;
      const value = write((line.raw || line.y)[i]);
      const range = line.ends ? ` [${write(line.ends[0][i])}, ${write(line.ends[1][i])}]` : '';
      const rows = [[tint, name, value + range]];
      return line.raw ? [...rows, [tint, `${name}, smoothed`, write(line.y[i])]] : rows;
    });
    if (!rows.length) return leave();
    cursor.setAttribute('x1', px(step));
    cursor.setAttribute('x2', px(step));
    cursor.setAttribute('visibility', 'visible');
    tip.replaceChildren(h('b', {}, `step ${step}`), ...rows.slice(0, 28).map(([tint, name, value]) =>
      h('div', {}, h('i', {style: `background:${tint}`}), h('span', {}, name), h('em', {}, value))));
    tip.hidden = false;
    const outer = card.getBoundingClientRect();
    const x = event.clientX - outer.left;
    const onRight = x > outer.width / 2;
    tip.style.left = onRight ? 'auto' : `${x + 14}px`;
    tip.style.right = onRight ? `${outer.width - x + 14}px` : 'auto';
    tip.style.top = `${box.top - outer.top + 8}px`;
  });
}
