// Page "join".
import { html } from "./htm-preact.js";
import { int, plural } from "./format.js";
import { Badge, Copy, Empty, Loading, Problem, Section } from "./parts.js";
import { useDocument } from "./store.js";

export default function Join() {
  const { data, error } = useDocument("/data/join", "roles", 10);
  if (!data) return html`<h1>Join</h1>${error ? html`<${Problem} error=${error}/>` : html`<${Loading}/>`}`;
  return html`<h1>Lend a machine</h1>
    <${Section} title="Two lines to copy" id="line">
      ${data.why ? html`<p class="callout"><bdi>${data.why}</bdi></p>` : null}
      ${data.line ? html`<p class="unit">Python 3.11 or newer and the run's versions:</p>
        <${Copy} text=${data.install} label="command that installs shoal"/>
        <${Copy} text=${data.line} label="command that joins the run"/>
        <p class="unit">The part after # is the coordinator's address: a worker believes no other.${data.local ? " This coordinator listens on this machine only." : ""}${data.closed ? " This run is closed: ask its owner for an invite (shoal invite), or to add your address (shoal identity show)." : ""}</p>` : data.why ? null : html`<${Empty}>There is nothing to join.</${Empty}>`}</${Section}>
    ${data.model ? html`<${Section} title="What it works on" id="work"><dl class="pairs wide"><div><dt>model</dt><dd><bdi>${data.model}</bdi>, ${data.dtype}</dd></div><div><dt>tasks</dt><dd>${data.tasks.map((name) => html`<bdi class="tag">${name}</bdi> `)}</dd></div><div><dt>per prompt</dt><dd>${int(data.group_size)} answers of up to ${int(data.answer_tokens)} tokens</dd></div><div><dt>prompts</dt><dd>up to ${int(data.prompt_tokens)} tokens</dd></div><div><dt>pay</dt><dd>${data.pay}</dd></div><div><dt>policy</dt><dd>up to ${plural(data.async_level, "version")} old</dd></div></dl></${Section}>` : null}
    ${data.code ? html`<p class="callout warn"><${Badge} word="runs code" tone="warn"/> ${data.code}</p>` : null}
    <div class="charts two"><${Section} title="It may" id="may"><ul>${data.may.map((text) => html`<li>${text}</li>`)}</ul></${Section}><${Section} title="It never will" id="never"><ul>${data.never.map((text) => html`<li>${text}</li>`)}</ul></${Section}></div>
    <${Section} title="Pause and stop" id="stop">${data.stop.map((text) => html`<p>${text}</p>`)}${data.lend ? html`<${Copy} text=${data.lend} label="command that lends the machine"/>` : null}</${Section}>`;
}
