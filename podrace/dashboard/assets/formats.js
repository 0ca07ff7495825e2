// Writes numbers, times and names for people.

export function count(value) {
  if (value === null || value === undefined) return "–";
  const magnitude = Math.abs(value);
  for (const [unit, suffix] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (magnitude >= unit) return `${Number((value / unit).toPrecision(3))}${suffix}`;
  }
  return `${Number(value.toPrecision(3))}`;
}

export function number(value, digits = 4) {
  return value === null || value === undefined ? "–" : typeof value === "number" ? `${Number(value.toPrecision(digits))}` : `${value}`;
}

export function score(value, error) {
  if (value === null || value === undefined) return "–";
  return error ? `${number(value)} ± ${number(error, 2)}` : number(value);
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

export function time(seconds) {
  return seconds ? new Date(seconds * 1000).toLocaleString() : "–";
}

export function bytes(value) {
  for (const [unit, suffix] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (value >= unit) return `${Number((value / unit).toPrecision(3))} ${suffix}`;
  }
  return `${value} B`;
}

// Use of the GPUs of a pod: mean utilization, and memory over all of them.
export function gpus(list) {
  const busy = list.map((one) => one.utilization_percent).filter((value) => value !== null);
  const sized = list.filter((one) => one.memory_total_bytes !== null);
  const sum = (values) => values.reduce((total, value) => total + value, 0);
  const parts = [
    list.length > 1 ? `${list.length} GPUs` : "",
    busy.length ? `${Math.round(sum(busy) / busy.length)} %` : "",
    sized.length ? `${bytes(sum(sized.map((one) => one.memory_used_bytes)))} of ${bytes(sum(sized.map((one) => one.memory_total_bytes)))}` : "",
  ];
  return parts.filter(Boolean).join(", ") || "–";
}

export function short(name, tournament) {
  return name.startsWith(`${tournament}-`) ? name.slice(tournament.length + 1) : name;
}
