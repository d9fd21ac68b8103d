// Numbers, sizes and times as people read them.

const grouped = new Intl.NumberFormat("en-US");
const UNITS = ["", "k", "M", "G", "T", "P"];
const BYTES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** All digits, in groups. */
export const whole = (number) => (number === null || number === undefined ? "–" : grouped.format(number));

/** About three digits: 1.2k, 34M. */
export const count = (number) => scaled(number, 1000, UNITS, "");

/** Octets. */
export const size = (number) => scaled(number, 1024, BYTES, " ");

/** Something per second. */
export const rate = (number) => `${count(number)}/s`;
export const byteRate = (number) => `${size(number)}/s`;

/** The same in a list, where nothing is a dot: what moves is seen. */
export const moving = (number, shown) => (number ? shown(number) : "·");

function scaled(number, step, units, gap) {
  if (number === null || number === undefined) return "–";
  let place = 0;
  let left = Number(number);
  while (Math.abs(left) >= step && place < units.length - 1) {
    left /= step;
    place += 1;
  }
  const digits = left && Math.abs(left) < 10 && left !== Math.trunc(left) ? left.toFixed(1) : left.toFixed(0);
  return `${digits}${gap}${units[place]}`;
}

/** A moment, in microseconds since 1970, in local time. */
export function moment(us) {
  if (!us) return "–";
  const at = new Date(us / 1000);
  const two = (number) => String(number).padStart(2, "0");
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  const ms = String(at.getMilliseconds()).padStart(3, "0");
  return `${day} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}.${ms}`;
}

/** How long ago a moment was. */
export function ago(us, nowS = Date.now() / 1000) {
  if (!us) return "–";
  return `${span(Math.max(0, nowS - us / 1e6))} ago`;
}

/** A number of seconds. */
export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1) return seconds < 0.05 ? "0 s" : `${seconds.toFixed(1)} s`;
  if (seconds < 100) return `${Math.round(seconds)} s`;
  if (seconds < 6000) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

/** The beginning of an address, which tells it from others. */
export const short = (address) => (address.length > 12 ? address.slice(0, 8) : address);

/** A number of things. */
export const plural = (number, noun) => `${whole(number)} ${noun}${number === 1 ? "" : "s"}`;
