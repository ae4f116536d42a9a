// Pools the seeds of one setting: means, with the lowest and the highest.

/** Pools runs whose settings differ in the seed alone; other runs are unchanged. */
function seedsTogether(all) {
  const groups = new Map();
  all.forEach((run, i) => {
    const settings = Object.entries(run.config).filter(([key]) => key !== 'seed').sort();
    const key = JSON.stringify([run.steps.length > 0, settings]);
    const members = groups.get(key) || [];
    const another = 'seed' in run.config && members.every((member) => member.config.seed !== run.config.seed);
    groups.set(another ? key : i, another ? [...members, run] : [run]);
  });
  return [...groups.values()].map((members) => (members.length === 1 ? {...members[0], runs: members} : pooled(members)));
}

function pooled(members) {
  const name = members[0].name.replace(/[_-]*seed[_=-]*\d+$/, '') || members[0].name;
  const evaluations = new Map();
  // Seeds may end at different steps; in an extended run the later end counts.
  const key = (e) => [e.label, e.split, (e.label || 'during') === 'during' && e.step].join('\n');
  for (const run of members) {
    for (const [name, e] of new Map(run.evaluations.map((e) => [key(e), e]))) {
      evaluations.set(name, [...(evaluations.get(name) || []), e]);
    }
  }
  return {
    ...members[0], name: `${name} (${members.length} seeds)`, runs: members,
    ...pooledCurves(members), sft: pooledCurves(members.map((run) => run.sft)),
    evaluations: [...evaluations.values()].map(pooledRecord),
  };
}

const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;

function pooledCurves(curves) {
  const steps = [...new Set(curves.flatMap((c) => c.steps))].sort((a, b) => a - b);
  const places = curves.map((c) => new Map(c.steps.map((step, i) => [step, i])));
  const result = {steps, series: {}, low: {}, high: {}};
  for (const key of new Set(curves.flatMap((c) => Object.keys(c.series)))) {
    const values = steps.map((step) => curves.map((c, k) => (c.series[key] || [])[places[k].get(step)]).filter(isNumber));
    const over = (reduce) => values.map((known) => (known.length ? reduce(known) : null));
    result.series[key] = over(mean);
    result.low[key] = over((known) => Math.min(...known));
    result.high[key] = over((known) => Math.max(...known));
  }
  return result;
}

/** The mean of one evaluation over seeds, at their last step; its ends are those of the seeds. */
function pooledRecord(members) {
  if (members.length === 1) return members[0];
  const steps = members.map((e) => e.step).filter(isNumber);
  const result = {...members[0], seeds: members.length, ...(steps.length && {step: Math.max(...steps)})};
  for (const key of Object.keys(result).filter((k) => k.includes('/') && !/_(low|high)$/.test(k))) {
    const known = members.map((e) => e[key]).filter(isNumber);
    if (!known.length) continue;
    result[key] = mean(known);
    result[key + '_low'] = Math.min(...known);
    result[key + '_high'] = Math.max(...known);
  }
  return result;
}
