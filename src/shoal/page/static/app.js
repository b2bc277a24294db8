// The frame: navigation, theme, the live line, and the page that the address names.
import { html, render, useEffect, useErrorBoundary, useRef, useState } from "./htm-preact.js";
import { duration, int } from "./format.js";
import { Badge, Loading } from "./parts.js";
import { connect, go, useStore } from "./store.js";

const PAGES = [
  { path: "/", label: "Run", module: "./run.js", at: /^\/$/ },
  { path: "/swarm", label: "Swarm", module: "./swarm.js", at: /^\/swarm$/ },
  { path: "/rollouts", label: "Rollouts", module: "./rollouts.js", at: /^\/rollouts$/ },
  { path: "/verdicts", label: "Verdicts", module: "./verdicts.js", at: /^\/verdicts(?:\/(\d+)\/(\d+))?$/ },
  { path: "/ledger", label: "Ledger", module: "./ledger.js", at: /^\/ledger$/ },
  { path: "/join", label: "Join", module: "./join.js", at: /^\/join$/ },
  { path: "/node", label: "", module: "./node.js", at: /^\/node\/(0x[0-9a-fA-F]{40})$/ },
];

function route(path) {
  for (const page of PAGES) {
    const match = page.at.exec(path);
    if (match) return { ...page, parts: match.slice(1) };
  }
  return null;
}

function Theme() {
  const root = document.documentElement.dataset;
  const [theme, setTheme] = useState(root.theme);
  const next = theme === "dark" ? "light" : "dark";
  const choose = () => {
    root.theme = next;
    try { localStorage.setItem("shoal-theme", next); } catch { /* it holds until the page is closed */ }
    dispatchEvent(new CustomEvent("themed"));
  };
  useEffect(() => {
    const changed = () => setTheme(root.theme);
    addEventListener("themed", changed);
    return () => removeEventListener("themed", changed);
  }, []);
  return html`<button class="theme" onClick=${choose} aria-label="switch to the ${next} theme" title="switch to the ${next} theme">${theme === "dark" ? "☀" : "☾"}</button>`;
}

// Says new steps to a screen reader, but not more often than one can listen to.
function Announcer({ live }) {
  const [text, setText] = useState("");
  const last = useRef({ at: 0, done: -1 });
  useEffect(() => {
    if (!live || live.done === last.current.done || Date.now() - last.current.at < 30000) return;
    last.current = { at: Date.now(), done: live.done };
    setText(`${int(live.done)} of ${int(live.total)} steps done, ${live.condition}`);
  }, [live]);
  return html`<p class="hidden" aria-live="polite">${text}</p>`;
}

function Header({ page }) {
  const { live, online } = useStore();
  return html`<header class="top"><a class="skip" href="#main">Skip to the content</a>
    <div class="bar-top">
      <a class="brand" href="/"><img src="/static/icon.svg" alt="" width="26" height="26"/><span>Shoal</span></a>
      ${live ? html`<span class="run-name"><bdi>${live.name}</bdi></span> <${Badge} word=${live.state}/>
        <span class="steps">${int(live.done)}${live.total ? ` / ${int(live.total)}` : ""} steps${live.left_s !== null ? `, ${duration(live.left_s)} left` : ""}</span>` : null}
      <span class="spring"></span>
      ${online ? null : html`<span class="badge warn" role="status">page server away, trying again</span>`}
      <${Theme}/>
    </div>
    <nav aria-label="pages"><ul>${PAGES.filter((one) => one.label).map((one) => html`<li><a href=${one.path} aria-current=${page && page.path === one.path ? "page" : null}>${one.label}</a></li>`)}</ul></nav>
    <${Announcer} live=${live}/></header>`;
}

const loaded = {};

function Body({ page, path }) {
  const [Page, setPage] = useState(null);
  const [missing, setMissing] = useState(null);
  const [error, forget] = useErrorBoundary();
  useEffect(() => {
    let dropped = false;
    forget();
    const known = loaded[page.module];
    if (known) { setPage(() => known); return undefined; }
    setPage(null);
    setMissing(null);
    import(page.module).then((module) => {
      loaded[page.module] = module.default;
      if (!dropped) setPage(() => module.default);
    }, () => setMissing(page.module));
    return () => { dropped = true; };
  }, [page.module]);
  if (error) return html`<p class="empty" role="alert">This page met an error of its own: ${String(error.message || error)}</p>`;
  if (missing === page.module) return html`<p class="empty" role="alert">This page did not load: its server is away.</p>`;
  return Page ? html`<${Page} key=${path} parts=${page.parts}/>` : html`<${Loading}/>`;
}

function App() {
  const [path, setPath] = useState(location.pathname);
  const [, again] = useState(0);
  const main = useRef(null);
  useEffect(() => {
    const moved = () => {
      setPath(location.pathname);
      again((n) => n + 1);
      scrollTo(0, 0);
      main.current?.focus({ preventScroll: true });
    };
    const requeried = () => again((n) => n + 1);
    addEventListener("popstate", moved);
    addEventListener("requery", requeried);
    return () => { removeEventListener("popstate", moved); removeEventListener("requery", requeried); };
  }, []);
  const page = route(path);
  const { live } = useStore();
  useEffect(() => {
    const name = live ? `${live.name} · ` : "";
    document.title = `${page ? page.label || "Node" : "Unknown"} · ${name}Shoal`;
  }, [path, live?.name]);
  const click = (event) => {
    const link = event.target.closest?.("a[href]");
    if (!link || link.target || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    const url = new URL(link.href, location.href);
    if (url.origin !== location.origin || url.hash) return;
    event.preventDefault();
    go(url.pathname + url.search);
  };
  return html`<div class="frame" onClick=${click}><${Header} page=${page}/>
    <main id="main" ref=${main} tabindex="-1">${page ? html`<${Body} page=${page} path=${path}/>` : html`<h1>Unknown page</h1><p class="empty">Nothing is at ${path}.</p>`}</main>
    <footer><p>Read from the run's files. <a href="/join">Lend a machine</a></p></footer></div>`;
}

connect();
render(html`<${App}/>`, document.getElementById("app"));
