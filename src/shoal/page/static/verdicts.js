// Page "verdicts": the list, and one verdict with its evidence.
import { html } from "./htm-preact.js";
import { ago, int, moment, NONE, plural } from "./format.js";
import { Address, Badge, Copy, Empty, Loading, Pager, Problem, Search, Section, Select, Table } from "./parts.js";
import { Prompt, Sample } from "./rollouts.js";
import { query, useDocument, useQuery } from "./store.js";

const result = (accept) => (accept === true ? "accepted" : accept === false ? "refused" : "unjudged");

export const fileColumns = (withNode) => [
  { head: "file", cell: (one) => html`<a href="/verdicts/${one.step}/${one.submission}">${one.step}/${one.submission}</a>` },
  ...(withNode ? [{ head: "node", cell: (one) => html`<${Address} address=${one.node} name=${one.name}/>` }] : []),
  { head: "verdict", cell: (one) => html`<${Badge} word=${result(one.accept)}/>` },
  { head: "check", cell: (one) => (one.check ? html`<bdi>${one.check}</bdi>${one.blame ? "" : html` <span class="unit">nobody's fault</span>`}` : one.accept === null ? NONE : html`<span class="unit">${one.audited ? "recomputed" : "not recomputed"}</span>`) },
  { head: "claimed", wide: true, cell: (one) => html`<bdi>${one.claimed || NONE}</bdi>` },
  { head: "found", wide: true, cell: (one) => html`<bdi>${one.found || NONE}</bdi>` },
  { head: "tokens", right: true, cell: (one) => int(one.tokens) },
  { head: "received", right: true, cell: (one) => html`<span title=${moment(one.received)}>${ago(one.received)}</span>` },
];

function List() {
  const [values, set] = useQuery({ result: "refused", check: "", node: "", step: "", page: "" });
  const { data, error } = useDocument(`/data/verdicts${query(values)}`);
  if (!data) return html`<h1>Verdicts</h1>${error ? html`<${Problem} error=${error}/>` : html`<${Loading}/>`}`;
  const none = { refused: "No file was refused.", accepted: "No file was accepted yet.", waiting: "No file awaits a verdict.", all: "No file was handed in yet." };
  const filtered = values.check || values.node || values.step;
  return html`<h1>Verdicts</h1><${Section} title="Files and what became of them" id="files" aside=${html`<span class="unit">${int(data.accepted)} accepted, ${int(data.refused)} refused, ${int(data.unjudged)} await a verdict</span>`}>
    <div class="filters"><${Select} label="Show" value=${values.result} options=${[["refused", "refused"], ["accepted", "accepted"], ["waiting", "awaiting a verdict"], ["all", "all"]]} onChange=${(value) => set({ result: value })}/>
      <${Search} label="Check" value=${values.check} placeholder="sampling" onChange=${(check) => set({ check })}/>
      <${Search} label="Node" value=${values.node} placeholder="0x…" onChange=${(node) => set({ node })}/>
      <${Search} label="Step" value=${values.step} placeholder="any" onChange=${(step) => set({ step: step.replace(/\D/g, "") })}/></div>
    ${data.files.length ? html`<${Table} label="files" columns=${fileColumns(true)} rows=${data.files} keyed=${(one) => `${one.step}/${one.submission}`}/>` : html`<${Empty}>${filtered ? "No file fits." : none[values.result]}</${Empty}>`}
    <${Pager} ...${data} set=${set} what="files"/></${Section}>`;
}

function Evidence({ data }) {
  const { evidence } = data;
  return html`<${Section} title="Evidence" id="evidence">
    ${data.replay ? html`<p>Recompute it on any machine that has the run's directory (RUN):</p><${Copy} text=${data.replay} label="command that replays the evidence"/>` : null}
    ${!evidence ? html`<${Empty}>No evidence bundle is here: it was pruned, or another machine has it.</${Empty}>` : evidence.why ? html`<${Empty}><bdi>${evidence.why}</bdi></${Empty}>` : html`
      <${Prompt} text=${evidence.prompt}/>
      <h3>The sample that the finding is about</h3>
      ${evidence.claimed_token !== null ? html`<p class="unit">Tokens with number ${evidence.claimed_token}, which the finding names, are framed.</p>` : null}
      <${Sample} sample=${evidence.accused} title="Sample ${evidence.accused.number} of the file" mark=${evidence.claimed_token ?? -1} mean=${0.5}/>
      ${evidence.others.length ? html`<details><summary>${plural(evidence.others.length, "other sample")} of the group</summary><div class="samples">${evidence.others.map((sample) => html`<${Sample} sample=${sample} title="Sample ${sample.number} of the file" mean=${0.5}/>`)}</div></details>` : null}`}</${Section}>`;
}

function One({ step, number }) {
  const { data, error } = useDocument(`/data/verdicts/${step}/${number}`);
  const title = html`<h1>Submission ${step}/${number}</h1>`;
  if (!data) return html`${title}${error ? html`<${Problem} error=${error}/>` : html`<${Loading}/>`}`;
  const { finding } = data;
  return html`${title}<p class="lead"><${Badge} word=${result(data.accept)}/> handed in by <${Address} address=${data.node}/> ${ago(data.received)}${data.accept === null ? ", awaits a validator" : html`, judged by <${Address} address=${data.judge}/> ${data.audited ? "who recomputed it" : "without recomputing it"}`}</p>
    ${finding ? html`<${Section} title="Finding" id="finding"><dl class="finding">
      <div><dt>Check</dt><dd><bdi>${finding.check}</bdi>${finding.sample !== null ? `, sample ${finding.sample}` : ""} ${finding.blame ? null : html`<${Badge} word="nobody's fault" tone="info"/>`}</dd></div>
      <div class="claim"><dt>Claimed</dt><dd><bdi>${finding.claimed}</bdi></dd></div><div class="claim"><dt>Found</dt><dd><bdi>${finding.found}</bdi></dd></div>
      <div class="whole"><dt>Rule</dt><dd><bdi>${finding.rule}</bdi></dd></div>${data.numbers ? html`<div><dt>Numbers</dt><dd><bdi>${data.numbers}</bdi></dd></div>` : null}${data.against ? html`<div><dt>Node</dt><dd><bdi>${data.against}</bdi></dd></div>` : null}</dl>
      ${data.advice.length ? html`<h3>What to do</h3><ul>${data.advice.map((line) => html`<li>${line}</li>`)}</ul>` : null}</${Section}>` : null}
    ${data.accept === false ? html`<${Evidence} data=${data}/>` : null}
    <${Section} title="Record" id="record"><dl class="pairs wide"><div><dt>SHA-256</dt><dd><code class="hash">${data.sha256}</code></dd></div><div><dt>Received</dt><dd>${moment(data.received)}</dd></div><div><dt>Judged</dt><dd>${moment(data.judged)}</dd></div>
      ${data.accept ? html`<div><dt>Samples</dt><dd>${int(data.samples)}</dd></div>` : null}<div><dt>Tokens</dt><dd>${int(data.tokens)}</dd></div></dl>
      ${data.ledger.length ? html`<h3>On the ledger</h3><ul class="sentences">${data.ledger.map((line) => html`<li><bdi>${line}</bdi></li>`)}</ul>` : null}
      <p class="unit">In a terminal:</p><${Copy} text=${data.why} label="command that explains the verdict"/></${Section}>`;
}

export default function Verdicts({ parts }) {
  return parts[0] ? html`<${One} step=${parts[0]} number=${parts[1]}/>` : html`<${List}/>`;
}
