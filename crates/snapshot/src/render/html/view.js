// The part of the window that is looked at, in events.

const NARROWEST = 4;

export class View {
  constructor(last) {
    this.last = Math.max(last, 1);
    this.reset();
  }

  get width() {
    return this.to - this.from;
  }

  get isWhole() {
    return this.from <= 0 && this.to >= this.last;
  }

  reset() {
    [this.from, this.to] = [0, this.last];
  }

  /** Shows from one event to another, in any order, moved into the window where they are beyond it. */
  set(one, other) {
    const width = Math.min(Math.max(Math.abs(other - one), NARROWEST), this.last);
    const middle = (one + other) / 2;
    this.from = Math.min(Math.max(middle - width / 2, 0), this.last - width);
    this.to = this.from + width;
  }

  /** Zooms by a factor; `fixed` stays where it is. */
  zoom(factor, fixed) {
    const left = (fixed - this.from) * factor;
    this.set(fixed - left, fixed - left + this.width * factor);
  }

  /** Moves by a share of what is seen. */
  pan(share) {
    const by = share * this.width;
    const { from, to } = this;
    if (by < 0) this.set(Math.max(from + by, 0), Math.max(from + by, 0) + to - from);
    else this.set(Math.min(to + by, this.last) - (to - from), Math.min(to + by, this.last));
  }

  /** Moves as little as is needed for an event to be seen. */
  reveal(event) {
    if (event < this.from) this.set(event, event + this.width);
    if (event > this.to) this.set(event - this.width, event);
  }
}
