// What the server says: one event stream per open page, and documents that are fetched again when they changed.
import { useEffect, useState } from "./htm-preact.js";

const listeners = new Set();
export const store = { live: null, online: true };

function tell() {
  for (const listener of listeners) listener();
}

const AGAIN_MS = 5000;

export function connect() {
  let source = null;
  let timer = 0;
  const close = () => {
    clearTimeout(timer);
    source?.close();
  };
  const open = () => {
    close();
    const mine = source = new EventSource("/events");
    mine.addEventListener("news", (event) => {
      store.live = JSON.parse(event.data);
      store.online = true;
      tell();
    });
    mine.onerror = () => {
      store.online = false;
      // A browser tries again by itself where the line broke, but never after an answer such as 503.
      if (mine.readyState === EventSource.CLOSED && mine === source) timer = setTimeout(open, AGAIN_MS * (1 + Math.random()));
      tell();
    };
  };
  open();
  // A page that is gone must not hold one of the server's streams, nor keep the browser from caching the page.
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => event.persisted && open());
}

export function useStore() {
  const [, again] = useState(0);
  useEffect(() => {
    const listener = () => again((n) => n + 1);
    listeners.add(listener);
    return () => listeners.delete(listener);
  }, []);
  return store;
}

export async function ask(url) {
  const answer = await fetch(url, { headers: { Accept: "application/json" } });
  const body = await answer.json().catch(() => ({ error: `${answer.status} ${answer.statusText}` }));
  if (!answer.ok) throw new Error(body.error || `${answer.status}`);
  return body;
}

// The document at a URL, fetched again when the revision that it `follows` moves, at most once per `every` seconds.
export function useDocument(url, follows = "records", every = 3) {
  const [state, setState] = useState({ url: null, data: null, error: null });
  const [attempt, setAttempt] = useState(0);
  const revision = useStore().live?.revision?.[follows];
  useEffect(() => {
    let dropped = false;
    let timer = 0;
    const fresh = state.url !== url;
    const wait = fresh ? 0 : Math.max(0, state.at + 1000 * every - Date.now()) + Math.random() * 200;
    if (!fresh && (revision === undefined || revision === state.revision) && attempt === state.attempt) return undefined;
    timer = setTimeout(async () => {
      try {
        const data = await ask(url);
        if (!dropped) setState({ url, data, error: null, at: Date.now(), revision, attempt });
      } catch (error) {
        if (dropped) return;
        setState((old) => ({ url, data: old.url === url ? old.data : null, error: error.message, at: Date.now(), revision, attempt }));
      }
    }, wait);
    return () => {
      dropped = true;
      clearTimeout(timer);
    };
  }, [url, revision, attempt]);
  useEffect(() => {
    if (!state.error || state.url !== url) return undefined;
    const timer = setTimeout(() => setAttempt((n) => n + 1), 5000);
    return () => clearTimeout(timer);
  }, [state]);
  const mine = state.url === url;
  return { data: mine ? state.data : null, error: mine ? state.error : null };
}

export function query(values) {
  const kept = Object.entries(values).filter(([, value]) => value !== "" && value !== null && value !== undefined && value !== 0);
  const text = new URLSearchParams(kept.map(([name, value]) => [name, String(value)])).toString();
  return text ? `?${text}` : "";
}

export function go(path) {
  history.pushState(null, "", path);
  dispatchEvent(new PopStateEvent("popstate"));
}

// The query string as state: filters are in the address, so that a view can be shared and survives a reload.
export function useQuery(defaults) {
  const params = new URLSearchParams(location.search);
  const values = Object.fromEntries(Object.keys(defaults).map((key) => [key, params.get(key) ?? defaults[key]]));
  const set = (changes) => {
    const next = { ...values, page: "", ...changes };
    const differing = Object.fromEntries(Object.entries(next).filter(([key, value]) => value !== defaults[key]));
    history.replaceState(null, "", location.pathname + query(differing));
    dispatchEvent(new CustomEvent("requery"));
  };
  return [values, set];
}
