// Page "contributor".
import { html } from "./htm-preact.js";
import { ago, compact, int, moment, plural } from "./format.js";
import { Badge, Copy, Empty, Loading, Pager, Problem, Section, Table, Tile, Tiles } from "./parts.js";
import { Contract } from "./ledger.js";
import { fileColumns } from "./verdicts.js";
import { query, useDocument, useQuery } from "./store.js";

export default function Node({ parts }) {
  const [values, set] = useQuery({ page: "" });
  const { data, error } = useDocument(`/data/node/${parts[0].toLowerCase()}${query(values)}`);
  if (!data) return html`<h1>Node</h1><p><code class="hash">${parts[0]}</code></p>${error ? html`<${Problem} error=${error}/>` : html`<${Loading}/>`}`;
  const { node, account, judge } = data;
  return html`<h1>${node?.name ? html`<bdi>${node.name}</bdi>` : "Node"}</h1>
    <p class="lead"><code class="hash">${data.checksummed}</code></p>
    <p class="lead">${node ? html`<${Badge} word=${node.state}/> ${node.role}, heard ${ago(node.seen)}${node.doing ? html`: <bdi>${node.doing}</bdi>` : ""}` : html`<${Badge} word="forgotten" tone="mute"/> left this run`}</p>
    ${node?.reason ? html`<p class="callout"><bdi>${node.reason}</bdi></p>` : null}${data.evidence ? html`<p class="callout"><bdi>${data.evidence}</bdi></p>` : null}
    <${Tiles} label="the node in figures">
      ${account ? html`<${Tile} label="Earned" value=${compact(account.earned)} unit=${data.unit} note="${int(account.free)} can be withdrawn"/><${Tile} label="Locked" value=${compact(account.locked)} unit=${data.unit} note="until nobody can challenge the files"/><${Tile} label="Slashed" value=${compact(account.slashed)} unit=${data.unit} note="${int(account.voided)} voided"/>` : null}
      ${node ? html`<${Tile} label="Accepted" value=${int(node.accepted)} unit="files" note="${compact(node.tokens)} tokens"/><${Tile} label="Refused" value=${int(node.rejected)} unit="files" note=${node.abandoned ? `${plural(node.abandoned, "lease")} let go` : ""}/>` : null}
    </${Tiles}>
    <${Section} title="Submissions" id="submissions">${data.files.length ? html`<${Table} label="list of submissions" columns=${fileColumns(false)} rows=${data.files} keyed=${(one) => `${one.step}/${one.submission}`}/>` : html`<${Empty}>This node has handed in no file.</${Empty}>`}<${Pager} ...${data} set=${set} what="files"/></${Section}>
    ${account ? html`<${Section} title="Account" id="account"><dl class="pairs"><div><dt>standing</dt><dd><${Badge} word=${account.status}/></dd></div><div><dt>leases at once</dt><dd>${int(account.leases)}</dd></div><div><dt>stake</dt><dd>${int(account.stake)}</dd></div><div><dt>welcome credits</dt><dd>${int(account.gift)}</dd></div><div><dt>leaving</dt><dd>${int(account.leaving)}</dd></div><div><dt>paid out</dt><dd>${int(account.paid)}</dd></div><div><dt>bad files</dt><dd>${int(account.offences)}</dd></div></dl>
      <ul class="sentences">${data.outlook.map((line) => html`<li><bdi>${line}</bdi></li>`)}</ul></${Section}>` : html`<${Section} title="Account" id="account">${data.contract ? html`<${Contract} ...${data.contract}/>` : html`<${Empty}>${data.no_account}</${Empty}>`}</${Section}>`}
    ${judge ? html`<${Section} title="As a validator" id="judge"><dl class="pairs"><div><dt>standing</dt><dd>${int(judge.standing)}</dd></div><div><dt>judged</dt><dd>${int(judge.judged)}</dd></div><div><dt>refuted</dt><dd>${int(judge.refuted)}</dd></div><div><dt>misjudged planted files</dt><dd>${int(judge.misjudged)}</dd></div><div><dt>missed batches</dt><dd>${int(judge.missed)}</dd></div></dl></${Section}>` : null}
    <${Section} title="Record" id="record"><dl class="pairs">${node ? html`<div><dt>joined</dt><dd>${moment(node.joined)}</dd></div><div><dt>profile</dt><dd><bdi>${node.profile || "not declared"}</bdi></dd></div><div><dt>has version</dt><dd>${int(node.version)}</dd></div>` : null}</dl><p class="unit">In a terminal:</p><${Copy} text=${`shoal node ${data.address} RUN`} label="command that shows this node"/></${Section}>`;
}
