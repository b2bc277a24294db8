// Page "rollouts".
import { html, useState } from "./htm-preact.js";
import { figure, fixed, has, int, plural } from "./format.js";
import { Address, Badge, Empty, Histogram, Loading, Pager, Problem, Search, Section, Select, Tile, Tiles } from "./parts.js";
import { Strip, Tokens } from "./strip.js";
import { ask, query, useDocument, useQuery } from "./store.js";

function Answer({ sample, at }) {
  const [whole, setWhole] = useState(null);
  const [failed, setFailed] = useState("");
  const more = async () => {
    try {
      setWhole((await ask(`/data/rollouts/${at}/${sample.sample}`)).text);
    } catch (error) { setFailed(error.message); }
  };
  const cut = sample.is_cut;
  return html`<pre class="foreign" dir="auto" tabindex="0" role="group" aria-label="answer ${sample.sample}">${whole ?? sample.text}${cut && whole === null ? "…" : ""}</pre>
    ${cut && whole === null ? html`<button onClick=${more}>Show all ${plural(sample.tokens, "token")}</button>` : null}${failed ? html`<p class="empty small">${failed}</p>` : null}`;
}

export const Prompt = ({ text }) => html`<h3>Prompt</h3><pre class="foreign" dir="auto" tabindex="0" role="group" aria-label="prompt">${text}</pre>`;

export function Sample({ sample, at, mark, mean, title = `Sample ${sample.sample}` }) {
  const tone = !has(sample.reward) ? "mute" : sample.reward > mean ? "good" : sample.reward < mean ? "bad" : "info";
  return html`<article class="sample" aria-label=${title}>
    <header><h3>${title}</h3><${Badge} word=${has(sample.reward) ? `reward ${figure(sample.reward)}` : "no reward"} tone=${tone}/>
      <span class="unit">${sample.advantage >= 0 ? "+" : ""}${fixed(sample.advantage, 2)} advantage · ${plural(sample.tokens, "token")} · ${sample.finish === "eos" ? "ended" : "cut at the limit"}</span></header>
    ${sample.error ? html`<p class="bad-text"><bdi>${sample.error}</bdi></p>` : null}
    <${Answer} sample=${sample} at=${at}/>
    ${Object.keys(sample.parts).length ? html`<p class="unit">${Object.entries(sample.parts).map(([name, value]) => html`<bdi>${name}</bdi> ${figure(value)} `)}</p>` : null}
    ${sample.logprobs?.length ? html`<${Strip} name="log-prob" values=${sample.logprobs.map((v) => -v)} pieces=${sample.pieces} sign=${-1}/><${Strip} name="entropy" values=${sample.entropy} pieces=${sample.pieces}/><${Tokens} sample=${sample} mark=${mark}/>` : null}
  </article>`;
}

function Group({ step, at, close }) {
  const [number, group] = at.split(".");
  const path = `${step}/${number}/${group}`;
  const { data, error } = useDocument(`/data/rollouts/${path}`, "none");
  const rewards = data ? data.samples.map((s) => s.reward).filter(has) : [];
  const mean = rewards.reduce((a, b) => a + b, 0) / (rewards.length || 1);
  return html`<${Section} title="Group ${group} of submission ${step}/${number}" id="group" aside=${html`<button onClick=${close}>Close</button>`}>
    ${!data ? (error ? html`<${Problem} error=${error}/>` : html`<${Loading}/>`) : html`
      <p class="unit"><bdi>${data.source}</bdi>, task ${int(data.task)}, version ${int(data.version)}, by <${Address} address=${data.node}/></p>
      <${Prompt} text=${data.prompt}/>
      <div class="samples">${data.samples.map((sample) => html`<${Sample} key=${sample.sample} sample=${sample} at=${path} mean=${mean}/>`)}</div>
      <p class="chart-note">Log-prob: of each token under the policy that drew it. Entropy: an estimate, the negative log-prob averaged over eight tokens, whose expectation is the entropy. The stronger the colour, the less sure.</p>`}</${Section}>`;
}

const Dots = ({ rewards }) => {
  const low = Math.min(0, ...rewards.filter(has)), high = Math.max(1, ...rewards.filter(has));
  return html`<svg class="dots" viewBox="0 0 ${8 * rewards.length} 8" width=${8 * rewards.length} height="8" role="img" aria-label="rewards ${rewards.slice(0, 32).map((r) => figure(r)).join(", ")}">
    ${rewards.map((reward, n) => html`<circle cx=${8 * n + 4} cy="4" r="3" class=${has(reward) ? "dot" : "dot none"} fill-opacity=${has(reward) ? 0.1 + (0.9 * (reward - low)) / (high - low) : 0}/>`)}</svg>`;
};

export default function Rollouts() {
  const [values, set] = useQuery({ step: "", source: "", task: "", node: "", reward_from: "", reward_to: "", tokens_from: "", tokens_to: "", page: "", group: "" });
  const { group, ...filters } = values;
  const { data, error } = useDocument(`/data/rollouts${query(filters)}`, values.step ? "none" : "records", 5);
  if (!data) return html`<h1>Rollouts</h1>${error ? html`<${Problem} error=${error}/>` : html`<${Loading}/>`}`;
  if (data.step === null) return html`<h1>Rollouts</h1><${Empty}>No rollout yet: files show up here once a validator has accepted them.</${Empty}>`;
  const pick = (name) => (bin) => set(bin ? { [`${name}_from`]: String(bin[0]), [`${name}_to`]: String(bin[1]), group: "" } : { [`${name}_from`]: "", [`${name}_to`]: "", group: "" });
  const chosen = (name) => (values[`${name}_from`] === "" ? null : [Number(values[`${name}_from`]), Number(values[`${name}_to`])]);
  const at = data.steps.indexOf(data.step);
  const move = (by) => set({ step: String(data.steps[at + by]), group: "" });
  const gone = has(data.gone);
  return html`<h1>Rollouts</h1>${gone ? html`<p class="callout">No rollouts of step ${int(data.gone)} are here (any more); these are of step ${int(data.step)}.</p>` : null}
    <div class="filters"><div class="stepper" role="group" aria-label="step"><button disabled=${at <= 0} onClick=${() => move(-1)} aria-label="step before">←</button>
      <${Select} label="Step" value=${String(data.step)} options=${data.steps.map((step) => [String(step), int(step)]).reverse()} onChange=${(step) => set({ step, group: "" })}/>
      <button disabled=${at < 0 || at >= data.steps.length - 1} onClick=${() => move(1)} aria-label="step after">→</button></div>
      <${Select} label="Tasks of" value=${values.source} options=${[["", "all sources"], ...data.sources.map((s) => [s, s])]} onChange=${(source) => set({ source, group: "" })}/>
      <${Search} label="Task number" value=${values.task} placeholder="any" onChange=${(task) => set({ task: task.replace(/\D/g, ""), group: "" })}/>
      <${Select} label="Node" value=${values.node} options=${[["", "all nodes"], ...data.nodes.map((n) => [n, `${n.slice(0, 8)}…${n.slice(-4)}`])]} onChange=${(node) => set({ node, group: "" })}/></div>
    <${Tiles} label="the step in figures"><${Tile} label="Samples" value=${int(data.samples)} note=${`${plural(data.files, "accepted file")}${data.left_out ? `, ${int(data.left_out)} more not read` : ""}`}/>
      <${Tile} label="Mean reward" value=${fixed(data.mean_reward)}/><${Tile} label="Mean length" value=${figure(data.mean_tokens)} unit="tokens"/></${Tiles}>
    <div class="charts two"><${Section} title="Rewards" id="rewards"><${Histogram} bins=${data.rewards} name="reward" format=${figure} chosen=${chosen("reward")} onChoose=${pick("reward")}/></${Section}>
      <${Section} title="Lengths" id="lengths"><${Histogram} bins=${data.lengths} name="tokens" format=${(v) => int(Math.round(v))} chosen=${chosen("tokens")} onChoose=${pick("tokens")}/></${Section}></div>
    ${group && !gone ? html`<${Group} step=${data.step} at=${group} close=${() => set({ group: "", page: values.page })}/>` : null}
    <${Section} title="Groups" id="groups" aside=${html`<span class="unit">rewards that differ most come first</span>`}>
      ${data.groups.length ? html`<ul class="groups">${data.groups.map((one) => { const key = `${one.submission}.${one.group}`; return html`<li key=${key}><button class="group ${key === group ? "on" : ""}" aria-pressed=${key === group ? "true" : "false"} onClick=${() => { set({ group: key, page: values.page, step: String(data.step) }); document.getElementById("main").scrollIntoView(); }}>
        <span><bdi>${one.source}</bdi> · task ${int(one.task)}</span><${Dots} rewards=${one.rewards}/><span class="unit">mean ${figure(one.mean)} · ${one.lengths[0] === one.lengths[1] ? int(one.lengths[0]) : `${int(one.lengths[0])}–${int(one.lengths[1])}`} tokens · ${data.step}/${one.submission}</span></button></li>`; })}</ul>` : html`<${Empty}>No group fits these filters.</${Empty}>`}
      <${Pager} ...${data} set=${(changes) => set({ ...changes, group })} what="groups"/></${Section}>`;
}
