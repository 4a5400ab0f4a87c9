// The last hour as the server sampled it, kept up by asking only for what is new.

export class History {
  #groups = new Map();
  #keepMs = 3_600_000;
  newestMs = null;

  /** An answer of /api/v1/history; samples that are known are not taken twice. */
  add(answer) {
    this.#keepMs = answer.keepMs;
    for (const { brokerName, samples } of answer.groups) {
      const kept = this.#groups.get(brokerName) ?? { samples: [], version: 0 };
      const known = kept.samples.at(-1)?.atMs ?? -1;
      const fresh = samples.filter((sample) => sample.atMs > known);
      if (fresh.length === 0) continue;
      const newest = fresh.at(-1).atMs;
      const all = [...kept.samples, ...fresh].filter((sample) => sample.atMs > newest - this.#keepMs);
      this.#groups.set(brokerName, { samples: all, version: kept.version + 1 });
      this.newestMs = Math.max(this.newestMs ?? 0, newest);
    }
  }

  /** { samples, version } of a group; null while there is nothing. */
  of(brokerName) {
    return this.#groups.get(brokerName) ?? null;
  }
}
