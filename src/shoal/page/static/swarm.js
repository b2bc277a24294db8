// Page "swarm".
import { html } from "./htm-preact.js";
import { ago, compact, int, NONE, plural } from "./format.js";
import { Address, Badge, Empty, Loading, Pager, Problem, Search, Section, Select, Table, Tile, Tiles } from "./parts.js";
import { query, useDocument, useQuery } from "./store.js";

const STATES = ["joined", "healthy", "silent", "gone", "suspended", "banned"];
const SORTS = [["tokens", "most tokens"], ["speed", "fastest"], ["accepted", "most accepted"], ["refused", "most refused"], ["seen", "heard last"], ["name", "name"]];

function States({ states, chosen, choose }) {
  const total = Object.values(states).reduce((a, b) => a + b, 0) || 1;
  let at = 0;
  return html`<div class="states"><svg class="stack" viewBox="0 0 1000 12" preserveAspectRatio="none" aria-hidden="true">
      ${STATES.filter((state) => states[state]).map((state) => { const x = at; at += (1000 * states[state]) / total; return html`<rect class="state-${state}" x=${x} width=${Math.max(1, at - x - 1)} height="12"/>`; })}</svg>
    <ul class="chips" aria-label="nodes by state">${STATES.map((state) => html`<li><button aria-pressed=${chosen === state ? "true" : "false"} onClick=${() => choose(chosen === state ? "" : state)}><span class="swatch state-${state}" aria-hidden="true"></span>${state} <b>${int(states[state] || 0)}</b></button></li>`)}</ul></div>`;
}

const Branch = ({ role, address, name, state, note, below }) => html`<li>${role ? html`<b>${role}</b> ` : null}${address ? html`<${Address} address=${address} name=${name}/> ` : html`<bdi>${name}</bdi> `}
  ${state ? html`<${Badge} word=${state}/> ` : null}<span class="unit">${note}</span>${below?.length ? html`<ul>${below.map((one) => html`<${Branch} ...${one}/>`)}</ul>` : null}</li>`;

export default function Swarm() {
  const [values, set] = useQuery({ state: "", role: "", search: "", sort: "tokens", page: "" });
  const { data, error } = useDocument(`/data/swarm${query(values)}`);
  const columns = [
    { head: "node", cell: (one) => html`<${Address} address=${one.address} name=${one.name}/>` },
    { head: "role", cell: (one) => one.role },
    { head: "state", cell: (one) => html`<${Badge} word=${one.state}/>` },
    { head: "version", right: true, cell: (one) => int(one.version) },
    { head: "tokens", right: true, cell: (one) => compact(one.tokens) },
    { head: "tokens/s", right: true, cell: (one) => int(one.tokens_per_s) },
    { head: "accepted", right: true, cell: (one) => int(one.accepted) },
    { head: "refused", right: true, cell: (one) => (one.rejected ? html`<b class="bad-text">${int(one.rejected)}</b>` : "0") },
    { head: "heard", right: true, cell: (one) => ago(one.seen) },
    { head: "doing", wide: true, cell: (one) => html`<bdi>${one.reason || one.doing || NONE}</bdi>` },
  ];
  const nodes = data ? Object.values(data.states).reduce((a, b) => a + b, 0) : 0;
  return html`<h1>Swarm</h1>${!data ? (error ? html`<${Problem} error=${error}/>` : html`<${Loading}/>`) : html`
    <${Tiles} label="the swarm in figures">
      <${Tile} label="Nodes" value=${int(nodes)} note=${Object.entries(data.roles).map(([role, count]) => plural(count, role)).join(", ")}/>
      <${Tile} label="Generating" value=${int(data.tokens_per_s)} unit="tokens/s" note="nodes heard in the last two minutes"/>
      <${Tile} label="Accepted" value=${int(data.accepted)} unit="files" note="${compact(data.tokens)} tokens"/>
      <${Tile} label="Refused" value=${int(data.refused)} unit="files" note="${int(data.unjudged)} await a verdict"/>
    </${Tiles}>
    <${Section} title="Nodes" id="nodes"><${States} states=${data.states} chosen=${values.state} choose=${(state) => set({ state })}/>
      <div class="filters"><${Search} label="Name or address" value=${values.search} placeholder="0x… or a name" onChange=${(search) => set({ search })}/>
      <${Select} label="Role" value=${values.role} options=${[["", "all"], ...["worker", "validator", "trainer", "relay"].map((role) => [role, role])]} onChange=${(role) => set({ role })}/>
      <${Select} label="Order" value=${values.sort} options=${SORTS} onChange=${(sort) => set({ sort })}/></div>
      ${data.nodes.length ? html`<${Table} label="list of nodes" columns=${columns} rows=${data.nodes} keyed=${(one) => one.address}/>` : html`<${Empty}>${nodes ? "No node fits." : "No node has joined yet."}</${Empty}>`}
      <${Pager} ...${data} set=${set} what="nodes"/></${Section}>
    <${Section} title="How weights travel" id="tree"><ul class="tree"><${Branch} ...${data.tree}/></ul></${Section}>`}`;
}
