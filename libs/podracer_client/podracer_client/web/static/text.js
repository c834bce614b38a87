// Numbers as text, in the words of the command.
export const number = (value) => {
  if (value == null) return "–";
  if (Math.abs(value) < 10) return value.toFixed(2);
  return Math.abs(value) < 10_000 ? value.toFixed(1) : Math.round(value).toLocaleString("en");
};
export const count = (value) => {
  if (value == null) return "–";
  if (Math.abs(value) < 1e6) return Math.round(value).toLocaleString("en");
  return value < 1e9 ? `${(value / 1e6).toFixed(2)} M` : `${(value / 1e9).toFixed(2)} G`;
};
export const duration = (seconds) => {
  if (seconds == null) return "–";
  if (Math.round(10 * seconds) < 600) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return `${minutes} min ${String(whole % 60).padStart(2, "0")} s`;
  return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
};
/** `BUDGET_USED` as `budget used`. */
export const words = (name) => name.toLowerCase().replaceAll("_", " ");
export const bytes = (value) => (value == null ? "–" : `${(value / 2 ** 30).toFixed(1)} GiB`);
export const time = (text) => new Date(text).toLocaleString("sv");
export const setting = (value) => {
  if (Array.isArray(value)) return value.join(" × ");
  return typeof value === "number" && !Number.isInteger(value) ? String(Number(value.toPrecision(3))) : String(value);
};
