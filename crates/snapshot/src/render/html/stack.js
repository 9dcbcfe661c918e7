// Bands stacked upon each other: what each holds at each sample, and where it ends.

export class Stack {
  /** `states`: the number of events before each sample. `bands`: from the bottom, with what they hold in units of bytes. */
  constructor(states, bands, unit) {
    Object.assign(this, { states, bands, tops: [] });
    let below = new Float64Array(states.length);
    for (const { held } of bands) {
      below = below.map((bottom, sample) => bottom + (held[sample] ?? 0) * unit);
      this.tops.push(below);
    }
    this.total = below;
  }

  /** The sample that holds at an event: the last one that is not after it. */
  sampleAt(event) {
    let [low, high] = [0, this.states.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.states[middle] <= event) low = middle + 1;
      else high = middle;
    }
    return Math.max(low - 1, 0);
  }

  bottom(band, sample) {
    return band === 0 ? 0 : this.tops[band - 1][sample];
  }

  held(band, sample) {
    return this.tops[band][sample] - this.bottom(band, sample);
  }

  /** The band that a height lies in; `null` above them all. */
  bandAt(sample, height) {
    const band = this.tops.findIndex((top) => height < top[sample]);
    return band < 0 ? null : band;
  }

  /** The most that is held from one event to another. */
  most(from, to) {
    let most = 0;
    for (let sample = this.sampleAt(from); sample < this.states.length && this.states[sample] <= to; sample += 1) {
      most = Math.max(most, this.total[sample]);
    }
    return most;
  }
}
