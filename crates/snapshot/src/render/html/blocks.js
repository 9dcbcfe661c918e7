// The blocks of a device and their events: each block is allocated and, within the window or not, freed.

// More than there are entries: an event and an entry make one number.
const ENTRIES = 2 ** 20;

export class Blocks {
  /** `table`: columns of numbers, as the command writes them. */
  constructor(table) {
    Object.assign(this, { table, n: table.from.length });
    this.from = sums(table.from);
    this.address = sums(table.address).map((unit) => unit * table.unit);
    this.bytes = Float64Array.from(table.requested, (requested, block) => {
      return (Math.max(Math.ceil(requested / table.unit), 1) + table.extra[block]) * table.unit;
    });
    this.next = new Int32Array(this.n).fill(-1);
    for (let block = 0; block < this.n; block += 1) {
      const earlier = this.earlier(block);
      if (earlier !== null && this.next[earlier] < 0) this.next[earlier] = block;
    }
    this.entries = this.sorted();
    this.active = this.totals();
  }

  /** The events of all blocks in order, as entries: twice the block, and 1 more for its free. */
  sorted() {
    const keys = new Float64Array(2 * this.n);
    let length = 0;
    for (let block = 0; block < this.n; block += 1) {
      const [made, freed] = [this.made(block), this.freed(block)];
      if (made !== null) keys[length++] = made * ENTRIES + 2 * block;
      if (freed !== null) keys[length++] = freed * ENTRIES + 2 * block + 1;
    }
    return Int32Array.from(keys.subarray(0, length).sort(), (key) => key % ENTRIES);
  }

  /** The bytes that are active after each entry. */
  totals() {
    const active = new Float64Array(2 * this.n);
    let sum = 0;
    for (let block = 0; block < this.n; block += 1) if (this.made(block) === null) sum += this.bytes[block];
    this.entries.forEach((entry, place) => {
      const bytes = this.bytes[entry >> 1];
      sum += (entry % 2 === 1 ? -bytes : bytes) + (this.table.unlisted[place] ?? 0) * this.table.unit;
      active[entry] = sum;
    });
    return active;
  }

  /** The event that allocated a block; `null` before the window. */
  made(block) {
    return this.from[block] > 0 ? this.from[block] - 1 : null;
  }

  /** The event that freed a block; `null` if the window has none. */
  freed(block) {
    const lifetime = this.table.lifetime[block];
    return lifetime > 0 ? this.from[block] + lifetime - 1 : null;
  }

  /** The event of an entry. */
  event(entry) {
    return entry % 2 === 1 ? this.freed(entry >> 1) : this.made(entry >> 1);
  }

  isAlive(block, state) {
    const freed = this.freed(block);
    return this.from[block] <= state && (freed === null || state <= freed);
  }

  earlier(block) {
    const back = this.table.reuse[block];
    return back > 0 ? block - back : null;
  }

  line(block) {
    return this.table.lines[this.table.line[block]];
  }

  /** What a block is a copy of or as large as; often empty. */
  note(block) {
    return this.table.notes[this.table.note[block]];
  }

  category(block) {
    return this.table.categories[this.table.category[block]];
  }

  phase(entry) {
    const both = this.table.phase[entry >> 1];
    return this.table.phases[entry % 2 === 1 ? both % 8 : both >> 3];
  }

  ending(block) {
    return this.table.endings[this.table.ending[block]];
  }

  frames(stack) {
    return this.table.stacks[stack].map((frame) => this.table.frames[frame]);
  }

  /** The largest block that is alive in a state and wanted; of equal ones the newest. */
  largest(state, isWanted) {
    let found = null;
    for (let block = 0; block < this.n; block += 1) {
      const isLarger = found === null || this.bytes[block] >= this.bytes[found];
      if (isLarger && this.isAlive(block, state) && isWanted(block)) found = block;
    }
    return found;
  }
}

function sums(differences) {
  const values = new Float64Array(differences.length);
  let sum = 0;
  differences.forEach((difference, place) => {
    sum += difference;
    values[place] = sum;
  });
  return values;
}
