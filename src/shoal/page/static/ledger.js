// Page "ledger".
import { html } from "./htm-preact.js";
import { ago, int, moment, plural, short } from "./format.js";
import { Address, Badge, Copy, Empty, Loading, Problem, Section, Table, Tile, Tiles } from "./parts.js";
import { useDocument } from "./store.js";

export const Contract = ({ why, pairs, commands }) => html`<p>${why}</p>
  <dl class="pairs wide">${pairs.map(([name, text]) => html`<div><dt>${name}</dt><dd><code class="hash">${text}</code></dd></div>`)}</dl>
  ${commands.map((text) => html`<${Copy} text=${text} label="command ${text}"/>`)}`;

export default function Ledger() {
  const { data, error } = useDocument("/data/ledger");
  if (!data) return html`<h1>Ledger</h1>${error ? html`<${Problem} error=${error}/>` : html`<${Loading}/>`}`;
  if (data.kind === "contract") return html`<h1>Ledger</h1><${Section} title="A contract" id="contract"><${Contract} ...${data}/></${Section}>`;
  if (data.kind !== "file") return html`<h1>Ledger</h1><${Empty}>${data.why}</${Empty}>`;
  const { totals } = data;
  const columns = [
    { head: "entry", right: true, cell: (one) => int(one.number) },
    { head: "time", cell: (one) => moment(one.time) },
    { head: "author", cell: (one) => (one.role ? html`${one.role} <${Address} address=${one.author}/>` : html`<${Address} address=${one.author}/>`) },
    { head: "act", wide: true, cell: (one) => html`<bdi>${one.act}</bdi>` },
    { head: "hash", cell: (one) => html`<code title=${one.hash}>${one.hash.slice(0, 12)}</code>` },
  ];
  return html`<h1>Ledger</h1>
    <${Section} title=${data.fault ? "Not verified" : "Verified"} id="verified" aside=${data.fault ? html`<${Badge} word="tampered" tone="bad"/>` : html`<${Badge} word="verified"/>`}>
      ${data.fault ? html`<p class="bad-text" role="alert"><bdi>${data.fault}</bdi>. Entries before it are good; nothing after it was read.</p>` : html`<p>All ${int(data.entries)} entries${data.behind ? " so far, more are being verified" : ""}, by the server of this page, ${ago(data.verified_at)}. For each of them:</p>`}
      <ul>${data.checks.map((text) => html`<li>${text}</li>`)}</ul>
      <dl class="pairs wide"><div><dt>head</dt><dd><code class="hash">${data.head}</code></dd></div><div><dt>coordinator</dt><dd><code class="hash">${data.coordinator}</code></dd></div>
        ${data.cosigned.map((one) => html`<div><dt>signed up to entry ${int(one.number)}</dt><dd>validator <${Address} address=${one.validator}/></dd></div>`)}</dl>
      ${data.cosigned.length ? null : html`<p class="callout">No validator has signed a head yet: until one does, the coordinator could show others another history.</p>`}
      <p>Do not take this page's word for it. Verify it yourself:</p><${Copy} text="shoal ledger verify RUN" label="command that verifies the ledger"/></${Section}>
    <${Tiles} label="the ledger in figures"><${Tile} label="Entries" value=${int(data.entries)} note=${plural(totals.batches, "batch", "batches") + (totals.unsettled ? `, ${totals.unsettled} unsettled` : "")}/><${Tile} label="Accounts" value=${int(totals.accounts)} note="clock at step ${int(totals.clock)}"/><${Tile} label="Treasury" value=${int(totals.treasury)} unit="credits" note="${int(totals.held)} held for challenges"/><${Tile} label="Paid out" value=${int(totals.paid_out)} unit="credits" note="${int(totals.brought_in)} brought in"/></${Tiles}>
    <${Section} title="Validators" id="judges">${data.judges.length ? html`<${Table} label="list of validators" rows=${data.judges} columns=${[{ head: "validator", cell: (one) => html`<a class="address" href="/node/${one.address}"><code>${short(one.address)}</code></a>` }, ...["standing", "judged", "refuted", "misjudged", "missed"].map((key) => ({ head: key, right: true, cell: (one) => int(one[key]) }))]}/>` : html`<${Empty}>No validator yet.</${Empty}>`}</${Section}>
    <${Section} title="Newest entries" id="entries"><${Table} label="list of entries" columns=${columns} rows=${data.recent} keyed=${(one) => one.number}/></${Section}>`;
}
