//! The meaning of the columns of `stepmem snapshot`: unit and limits, a line each.
//! `docs/snapshot-reference.md` has the same lines.

/// The end of the help of `show`.
pub(super) const SHOW: &str = "\
Columns:
  share      percent of the bytes that are active at that moment
  bytes      of blocks, as the device holds them; KiB, MiB, GiB of 1,024
  blocks     live ones; (tensors: …) where tensors requested a tenth less
  line       innermost line of your code, else autograd node, else C++ function
  event      place in the device's trace, from 0; state after it
  step       the program's number of it where it gives one, else from 0
  peak, in   of a step: most active bytes at one moment, and the phase then
  at its end bytes that are active when the next step begins
  allocated  bytes of all blocks that the step made, also of freed ones
  a step     of a leak: bytes by which the line's least of a step rises
  stay       of a leak: blocks of the line alive at the end, of all it made
  stranded   free bytes in segments with a live block or of a private pool
  releasable free bytes of wholly free segments or pages
Limits: 6 frames a stack here, 16 in JSON; a leak needs 6 begun steps.";

/// The end of the help of `diff`.
pub(super) const DIFF: &str = "\
Columns:
  growth     bytes of blocks AFTER less those BEFORE, by line
  a step     growth by the steps that begin after BEFORE, where both have steps
  before     bytes of the line's live blocks in BEFORE
  after      bytes of the line's live blocks in AFTER
  line       as in `show`; of two processes, below the folder that they share
  a state    of a leak: bytes by which the line grows from a file to the next
  stay       of a leak: blocks of the last file that the first did not have
Limits: a leak needs 5 files of one process, each of the end of a step.";

/// The end of the help of `ranks`.
pub(super) const RANKS: &str = "\
Columns:
  rank       the number after \"rank\" in the file's name, else its place
  peak       most bytes of blocks that were active at one moment
  end        bytes of blocks that are active at the end
  reserved   bytes taken from the driver at the end
  median     of what the other ranks hold in that line, in tensor bytes
Limits: a rank stands out by 1 MiB, a fifth of the median and 6 deviations.";

/// The end of the help of `events`.
pub(super) const EVENTS: &str = "\
Columns:
  event      place in the device's trace, from 0
  step       the program's number of it where it gives one, else from 0
  phase      forward, backward, collective (ranks exchange data), optimizer or
             zero_grad, as stacks and marks tell
  size       bytes that the tensor requested: + allocated, - freed, ! refused
  active     bytes of all active blocks after the event, a free's completed
  category   what the block is for, by its lifetime, phase and stack
  line       innermost line of your code, else autograd node, that allocated it
  address    first byte of the block, whose size is told where a tenth larger
  lives      events from allocation to free, where both are in the trace
  freed by   line or node of the free's stack; without one, what lies around it
  peak       most active bytes at one moment of a phase, of the selected events
  in the memory of
             the block that last used most of these bytes, in this trace
  +SIZE      of a chain: where the block begins, after the chain's first byte
  share      of a tree: percent of the bytes that are alive at that moment
Limits: 100 rows without --top; a tree has the innermost 64 frames of a stack.";
