// Page "run".
import { html, useMemo } from "./htm-preact.js";
import { ago, duration, fixed, has, int, moment, percent, NONE } from "./format.js";
import { Badge, Empty, Loading, Problem, Section, Table, Tile, Tiles } from "./parts.js";
import { Chart } from "./chart.js";
import { useDocument, useStore } from "./store.js";

function curves(doc) {
  const { x, mean, low, high } = doc.series;
  const line = (key, label, color, extra = {}) => ({ label, color, y: mean[key], low: low[key], high: high[key], ...extra });
  const evals = doc.held_out.filter((one) => one[1] !== null);
  // Version k is what step k generates with, so an evaluation stands at its version on the axis of steps.
  const all = [...new Set([...x, ...evals.map((one) => one[0])])].sort((a, b) => a - b);
  const place = new Map(x.map((step, n) => [step, n]));
  const spread = (values) => values && all.map((step) => (place.has(step) ? values[place.get(step)] : null));
  const passed = new Map(evals.map((one) => [one[0], one[1]]));
  const learning = [
    { ...line("reward", "reward", "--c1"), y: spread(mean.reward), low: spread(low.reward), high: spread(high.reward) },
    { ...line("solve_rate", "solve rate", "--c3"), y: mean.solve_rate && JSON.stringify(mean.solve_rate) !== JSON.stringify(mean.reward) ? spread(mean.solve_rate) : null, low: undefined, high: undefined },
    { label: "held-out pass@1", color: "--c2", points: true, y: evals.length ? all.map((step) => passed.get(step) ?? null) : null, intervals: evals.map((one) => [one[0], one[2], one[3]]) },
  ];
  return { x, all, learning, line };
}

function Charts({ doc }) {
  const { x, all, learning, line } = useMemo(() => curves(doc), [doc]);
  const per = doc.series.per;
  const note = per > 1 ? `Each point is ${int(per)} steps: the line is their mean, the band their lowest and highest value.` : null;
  const plain = ({ low, high, ...rest }) => rest;
  const share = (value, digits = 2) => (has(value) ? `${Number((100 * value).toPrecision(digits))} %` : NONE);
  return html`<${Section} title="Learning" id="learning"><${Chart} title="Reward" unit="mean per step" x=${all} lines=${learning} height=${280} note=${[note, doc.held_out.length ? "Bars: 95 % interval of the held-out pass@1." : null].filter(Boolean).join(" ")}/></${Section}>
    <${Section} title="Behaviour" id="behaviour"><div class="charts">
      <${Chart} title="Entropy" unit="nats per token" x=${x} lines=${[line("entropy", "", "--c1")]}/>
      <${Chart} title="Gradient norm" unit="before clipping" x=${x} lines=${[line("grad_norm", "", "--c1")]}/>
      <${Chart} title="Clipped" unit="of tokens" x=${x} lines=${[line("clip_low", "low", "--c1"), plain(line("clip_high", "high", "--c2"))]} format=${share}/>
      <${Chart} title="Staleness" unit="versions" x=${x} lines=${[plain(line("staleness_mean", "mean", "--c1")), plain(line("staleness_max", "largest", "--c3"))]}/>
      <${Chart} title="Drift" unit="nats per token" x=${x} lines=${[plain(line("kl", "KL to base", "--c1")), plain(line("drift", "since sampled", "--c2"))]}/>
      <${Chart} title="Answer length" unit="tokens" x=${x} lines=${[line("completion_tokens_mean", "", "--c1")]}/>
      <${Chart} title="Trained" unit="tokens/s" x=${x} lines=${[line("tokens_per_s", "", "--c1")]}/>
      <${Chart} title="Waiting" unit="of time" x=${x} lines=${[plain(line("wait_share", "trainer", "--c1")), plain(line("workers_wait", "workers", "--c2"))]} format=${share}/>
    </div></${Section}>`;
}

function Roles({ roles, waiting }) {
  const columns = [
    { head: "role", cell: (one) => html`<bdi>${one.role}</bdi>` },
    { head: "state", cell: (one) => html`<${Badge} word=${one.state}/>` },
    { head: "doing", wide: true, cell: (one) => html`<bdi>${one.doing}</bdi>` },
    { head: "waits on", cell: (one) => html`<bdi>${one.on || NONE}</bdi>` },
    { head: "tokens/s", right: true, cell: (one) => int(one.tokens_per_s) },
    { head: "waiting", right: true, cell: (one) => percent(one.wait_share) },
  ];
  return html`<${Section} title="Who waits on whom" id="waits">
    ${waiting.length ? html`<ul class="sentences">${waiting.map((text) => html`<li><bdi>${text}</bdi></li>`)}</ul>` : null}
    ${roles.length ? html`<${Table} label="roles of the run" columns=${columns} rows=${roles} keyed=${(one) => one.role}/>` : html`<${Empty}>No role of this run has left a status file here.</${Empty}>`}</${Section}>`;
}

function Progress({ doc }) {
  const share = doc.total ? Math.min(1, doc.done / doc.total) : 0;
  return html`<div class="progress-row"><progress max="1" value=${share} aria-label="steps done"></progress>
    <p>${int(doc.done)} of ${int(doc.total)} steps · ${doc.condition}${has(doc.left_s) ? html` · <b>${duration(doc.left_s)}</b> left` : ""}${has(doc.pace_s) ? ` · ${duration(doc.pace_s)} per step` : ""}${has(doc.last.time) ? ` · last step ${ago(doc.last.time)}` : ""}</p></div>`;
}

function Headline({ doc }) {
  const evals = doc.held_out.filter((one) => one[1] !== null);
  const [base, latest] = [evals[0], evals[evals.length - 1]];
  const range = latest && has(latest[2]) ? `[${fixed(latest[2], 2)}, ${fixed(latest[3], 2)}] at version ${int(latest[0])}` : latest ? `version ${int(latest[0])}` : "no evaluation yet";
  const gained = base && latest && base !== latest ? `${fixed(base[1])} → ${fixed(latest[1])}` : fixed(latest?.[1]);
  const waits = doc.roles.find((one) => one.role === "trainer")?.wait_share;
  return html`<${Tiles} label="the run in figures">
    <${Tile} label="Reward" value=${fixed(doc.last.reward)} note=${has(doc.last.step) ? `of step ${int(doc.last.step)}` : "no step yet"}/>
    <${Tile} label="Held-out pass@1" value=${gained} note=${range}/>
    <${Tile} label="Trained" value=${int(doc.last.tokens_per_s)} unit="tokens/s" note=${has(waits) ? `trainer waited ${percent(waits)} of the step` : ""}/>
    <${Tile} label=${doc.state === "running" ? "Time left" : "Started"} value=${doc.state === "running" ? duration(doc.left_s) : ago(doc.started)} note=${doc.state === "running" ? `started ${ago(doc.started)}` : moment(doc.started)}/>
  </${Tiles}>`;
}

export default function Run() {
  const { data, error } = useDocument("/data/run", "steps", 1);
  const { live } = useStore();
  if (!data) return html`<h1 class="hidden">Run</h1>${error ? html`<${Problem} error=${error}/>` : html`<${Loading}/>`}`;
  const doc = live ? { ...data, ...live, done: Math.max(data.done, live.done) } : data;
  const why = doc.waiting[0] ? html`<bdi>${doc.waiting[0]}</bdi>` : doc.condition;
  return html`<h1><bdi>${doc.name}</bdi></h1><${Progress} doc=${doc}/>
    ${data.series.x.length ? html`<${Headline} doc=${doc}/><${Charts} doc=${data}/>` : html`<p class="empty big">No step yet: ${why}</p>${data.held_out.length ? html`<${Headline} doc=${doc}/>` : null}`}
    <${Roles} roles=${doc.roles} waiting=${doc.waiting}/>
    ${data.cells.length ? html`<${Section} title="Latest numbers" id="numbers"><dl class="pairs">${[...data.cells, ...data.drawn].map(([name, text]) => html`<div><dt><bdi>${name}</bdi></dt><dd><bdi>${text}</bdi></dd></div>`)}</dl>${data.suite ? html`<p><bdi>${data.suite}</bdi></p>` : null}</${Section}>` : null}
    ${data.compute?.length ? html`<${Section} title="Compute ledger" id="compute"><dl class="pairs wide">${data.compute.map(([name, text]) => html`<div><dt>${name}</dt><dd>${text}</dd></div>`)}</dl></${Section}>` : null}
    ${data.notes.length ? html`<${Section} title="Notes" id="notes"><ol class="notes" reversed tabindex="0" aria-label="notes">${[...data.notes].reverse().map(([when, text]) => html`<li><time>${moment(when).slice(11, 19)}</time> <bdi>${text}</bdi></li>`)}</ol></${Section}>` : null}`;
}
