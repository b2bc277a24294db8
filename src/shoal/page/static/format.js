// Numbers and times as people read them.
export const NONE = "–";
const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export const has = (value) => value !== null && value !== undefined && !Number.isNaN(value);
export const int = (value) => (has(value) ? whole.format(value) : NONE);
export const fixed = (value, digits = 3) => (has(value) ? value.toFixed(digits).replace("-", "−") : NONE);
export const percent = (value) => (has(value) ? `${(100 * value).toFixed(0)} %` : NONE);

export function compact(value) {
  if (!has(value)) return NONE;
  const size = Math.abs(value);
  if (size >= 999.995e6) return `${(value / 1e9).toFixed(2)} G`;
  if (size >= 999.95e3) return `${(value / 1e6).toFixed(2)} M`;
  if (size >= 1e4) return `${(value / 1e3).toFixed(1)} k`;
  return int(value);
}

export function figure(value, digits = 3) {
  if (!has(value)) return NONE;
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(digits - 2).replace("-", "−");
  if (size >= 1000) return int(value);
  return Number(value.toPrecision(digits)).toString().replace("-", "−");
}

export function duration(seconds) {
  if (!has(seconds)) return NONE;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  const rounded = Math.round(seconds);
  if (rounded < 60) return `${rounded} s`;
  const minutes = Math.floor(rounded / 60);
  if (minutes < 60) return `${minutes} min ${rounded % 60} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export const ago = (time) => (has(time) ? `${duration(Math.max(0, Date.now() / 1000 - time))} ago` : NONE);

export function moment(time) {
  if (!has(time)) return NONE;
  const iso = new Date(time * 1000).toISOString();
  return `${iso.slice(0, 10)} ${iso.slice(11, 19)} UTC`;
}

export const short = (address) =>
  address && address.length === 42 ? `${address.slice(0, 6)}…${address.slice(-4)}` : address;
export const plural = (count, one, many = `${one}s`) => `${int(count)} ${count === 1 ? one : many}`;
