// Made from the JSON Schema by `python tests/generate.py`.

/** The whole step: floor + tracing + findings + unexplained. */
export interface Account {
  /** "replay", or "busy_time" where the steps cannot be replayed: `no_replay` says why. */
  method: "busy_time" | "replay";
  /** All steps of all ranks, ns. */
  total_ns: number;
  /** The floor first, then tracing, the time in which a server has no request (only where there is some), the findings in the order in which they are charged, and what is unexplained. */
  lines: AccountLine[];
  /** null where nothing is. */
  unexplained: Unexplained | null;
  left_out: LeftOutStep[];
  /** The floor, against what the device could do; in the order of `FloorKind`. */
  floor_lines: FloorLine[];
  /** Why the steps cannot be replayed, in sentences; "" where they are. */
  no_replay: string;
}

/** A part of the step. */
export interface AccountLine {
  kind: "finding" | "floor" | "no-requests" | "tracing" | "unexplained";
  /** The finding's id, null for the other kinds. */
  finding: string | null;
  /** Summed over ranks and steps, ns; the lines of an account sum to its total. */
  total_ns: number;
  /** Mean over ranks and steps, and its share of the step, 0 to 1. */
  ms: number;
  share: number;
}

/** The AllReduce algorithm that is expected to be the quickest from some message size on. */
export interface Algorithm {
  /** ring, tree or hierarchical. */
  name: string;
  /** The least message size for which it is, bytes. */
  from_bytes: number;
}

/** How transfer grows with bytes, least squares over a kind and group: alpha + bytes / bandwidth. */
export interface AlphaBeta {
  alpha_us: number;
  /** GB = 1e9 bytes; null where size makes no difference. */
  bandwidth_gb_s: number | null;
  r2: number;
  /** Root mean square of what the line misses. */
  residual_us: number;
  /** Largest bytes over smallest. */
  spread: number;
  /** Whether sizes differ enough, and explain the times well enough, to believe it. */
  significant: boolean;
}

/** From how many ranks on a job scales badly; only powers of two are tried. */
export interface Breaks {
  /** Scaling breaks if the efficiency is below this. */
  efficiency: number;
  /** The least number of ranks for which it is; null if there is none. */
  inefficient_from: number | null;
  /** The least number of ranks for which communication takes longer than backward's compute, which could hide it. */
  exposed_from: number | null;
  /** The largest number of ranks that was tried. */
  searched_to: number;
}

/** A bucket of gradients as recorded. */
export interface Bucket {
  bytes: number;
  gradients: number;
  /** Module of the first gradient, "" if stacks are not recorded. */
  first_module: string;
  /** Module of the last gradient, "" likewise. */
  last_module: string;
  /** Whether it ends where a module ends; null if modules are not known. */
  ends_with_module: boolean | null;
  /** The first layer of which it has gradients, counted from 1 in the order of backward; null if sizes of gradients do not repeat, or its gradients are of no layer. */
  first_layer: number | null;
  /** The last layer of which it has gradients, likewise. */
  last_layer: number | null;
  /** Whether it ends where a layer ends, likewise. */
  ends_with_layer: boolean | null;
}

/** The recorded buckets. */
export interface Buckets {
  /** The least and the largest `bucket_cap_mb` that give these buckets (null: no limit); null if no value does. */
  cap_mb: [number, number | null] | null;
  gradients: number;
  bytes: number;
  mean_bytes: number;
  dtype: string;
  /** Number of layers, found by the repeating sizes of gradients; 0 if these do not repeat. */
  layers: number;
  buckets: Bucket[];
}

/** How well the ranks' clocks agree after alignment. */
export interface Clock {
  /** Median spread of the ends of matched collectives after correction, us; null where nothing could be matched. */
  residual_us: number | null;
  /** What was subtracted from each rank's clock, us, by rank. */
  offset_us: Record<string, number>;
}

/** What one of the two runs is. */
export interface Compared {
  name: string;
  /** Ranks that have a trace here, of so many. */
  ranks: number;
  world_size: number;
  /** Steps that all of them have. */
  steps: number;
  /** The devices' name, "" for a job without. */
  device: string;
}

/** One amount in both runs, mean over ranks and steps, ms. */
export interface ComparedAmount {
  name: string;
  before_ms: number;
  after_ms: number;
}

/** Everything that differs between two runs. */
export interface Comparison {
  before: string;
  after: string;
  /** Both, the earlier one first; and what else than the step time sets them apart, in sentences. */
  runs: [Compared, Compared];
  unlike: string[];
  /** One sentence on the step time, then one for each thing that made most of the difference. */
  headline: string;
  story: string[];
  step: StepTime;
  owners: ComparedAmount[];
  /** Copies between host and device; the part of them that nothing hides; the host's time in those that block it. */
  copies: ComparedAmount;
  exposed_copies: ComparedAmount;
  blocking_copies: ComparedAmount;
  findings: FindingChange[];
  /** By kind of collective: what its transfers take, hidden or not, without the waiting. */
  communication: ComparedAmount[];
  /** The 96 that changed most, and the sum of the others. */
  kernels: KernelChange[];
  operators: OperatorChange[];
  /** Calls whose share of their attainable speed changed by a tenth of it or more, those that lost most time first. */
  roofs: RoofChange[];
  /** The model's modules as a tree, each followed by those within it; none where a run names none, or in another way. */
  modules: ModuleChange[];
  /** The 256 kernels of modules that changed most; none where `modules` has none. */
  module_kernels: ModuleKernelChange[];
}

/** A file `ddp-doctor.toml`, and what it sets. */
export interface ConfigUse {
  file: string;
  /** By name: thresholds as "straggler.min_excess", "gpu_hour" ... */
  values: Record<string, number | string>;
}

/** A diagnosis with these findings. */
export interface Diagnosis {
  name: string;
  world_size: number;
  ranks: number[];
  missing_ranks: number[];
  /** Files of which a part or all is not in here: cut off, damaged, still arriving, unreadable. */
  incomplete: string[];
  steps: number[];
  step_ms: number;
  /** The rule of the costliest finding of at least minor severity; "unexplained" if more of the step than that has no explanation; "unknown" if the traces cannot tell; else "healthy". */
  verdict: string;
  /** The verdict in one sentence, for people. It says so where it rests on incomplete files, and where "healthy" rests on less than the whole job. */
  headline: string;
  account: Account;
  /** Mean over steps, by rank, by owner. */
  budget_ms: Record<string, Record<string, number>>;
  /** The same by phase, on the device (without one, on the host), and on the host; empty where the traces do not tell. */
  phases_ms: Record<string, Record<string, number>>;
  host_phases_ms: Record<string, Record<string, number>>;
  clock: Clock;
  /** By kind and process group, those that transfer longest first; empty where no collective could be matched. */
  communication: TrafficRow[];
  /** null where no log of NCCL lies beside the traces. */
  network: Network | null;
  outcomes: RuleOutcome[];
  warnings: FileWarning[];
  /** What each step's length hangs on, across ranks; empty where steps cannot be played again (`Account.method`). */
  critical_path: PathStep[];
  /** null where no trace has memory events (profile_memory=True). */
  memory: Memory | null;
  /** The last snapshot of torch.cuda.memory of each rank beside the traces. */
  memory_snapshots: MemorySnapshot[];
  setting: Setting;
  /** Where who waits, the critical path and the replay disagree on who is slow, each in a sentence; then the findings concerned have less confidence. */
  contradictions: string[];
  /** The parts that the headline begins with, null where it tells no cost; and what it says after them, or after its first sentence. */
  headline_parts: Headline | null;
  headline_rest: string;
  /** null where the user says neither what a step does nor what a GPU costs, and no power was captured. */
  rates: Rates | null;
  /** The dimensions of parallelism; null where no process group and no message shows one. */
  mesh: MeshTable | null;
  /** Files with settings that this diagnosis was made with, the project's first. */
  config: ConfigUse[];
  /** What the job does, as far as its traces show. */
  kind: "RL" | "benchmark" | "diffusion" | "inference" | "inference server" | "recommender" | "training" | "unknown";
  /** Of a server whose marks tell what its iterations work on; empty otherwise. */
  iterations: IterationKind[];
  /** The model's modules, or its layers where these are guessed; null where the traces show neither. */
  layers: LayerTable | null;
  findings: Finding[];
  /** What is no fault and could be faster still, the largest saving first: findings of severity "opportunity". Their costs are what their fixes save in turn once all `findings` are fixed; they lie within the account's floor. */
  opportunities: Finding[];
  /** How the verdict is shown. */
  level: "critical" | "healthy" | "info" | "major" | "minor" | "opportunity";
}

/** A piece of evidence, and the slice that shows it. */
export interface Evidence {
  rank: number;
  step: number;
  /** Absolute time on the rank's own clock, ns since the epoch (or the trace's own zero where it has no epoch). */
  start_ns: number;
  end_ns: number;
  what: string;
  /** What the host is in, or was in when it launched what the device runs; null without stacks (with_stack=True), and where no one function has most of the window. */
  source: Source | null;
  /** Where the host is outside any op: the last op that ended before and the first that starts after; "" if unknown. */
  op_before: string;
  op_after: string;
  /** null where the traces are elsewhere. */
  window: Window | null;
  /** null without stacks, and where the file is not here. */
  source_line: SourceLine | null;
}

/** Something that a user must know about an input: which file, and what was wrong and what was kept. */
export interface FileWarning {
  file: string;
  message: string;
  kind: "arriving" | "lost-end" | "lost-events" | "not-json" | "note";
}

/** A finding, and what would confirm it. */
export interface Finding {
  /** The rule's name, and a number after a colon where the rule has several findings. */
  id: string;
  rule: string;
  severity: "critical" | "info" | "major" | "minor" | "opportunity";
  /** Predicted fall of the step time if the fault were fixed, ms, without what findings before it would give back too: its line of the account. Together the findings cost what fixing all of them saves. */
  cost_ms: number;
  /** The same if nothing else were fixed, ms. */
  alone_ms: number;
  /** From where to where the cost lies in 8 of 10 jobs, ms. */
  range_ms: [number, number];
  ranks: number[];
  steps: number[];
  /** The kind of cause, from the rule's own list; null where the rule knows only one. */
  cause: string | null;
  confidence: "high" | "low" | "medium";
  /** One sentence that names the ranks, or what is slow. */
  title: string;
  /** One sentence: who or what costs how much of the step; the title of what costs nothing. */
  headline: string;
  /** What was seen that says so, and what the confidence rests on. */
  why: string;
  /** Advice in words; then, after an empty line, the code or command to copy. */
  fix: string;
  /** The numbers that it rests on, and the steps from them to the cost. */
  measurements: Measurement[];
  thresholds: Threshold[];
  /** null where its fix alone saves at least 80 % of what it costs, and of findings that only inform. */
  together: Together | null;
  /** The parts of the headline; null of what costs nothing. */
  headline_parts: Headline | null;
  /** The parts of `fix`. */
  fix_parts: FixParts;
  /** Paths of the model's modules that `why` names, as in `LayerRow`. */
  modules: string[];
  evidence: Evidence[];
  /** Commands of other tools. */
  commands: string[];
  /** What to record once more; null where that would tell no more. */
  record: RecordingToMake | null;
  /** How long the gaps of each owner are on its ranks and in its steps; {} where they are not known. */
  gaps: Record<string, GapLengths>;
}

/** What became of the findings of one rule. */
export interface FindingChange {
  rule: string;
  fate: "better" | "fixed" | "new" | "same" | "worse";
  before_ms: number;
  after_ms: number;
  /** Of the costliest of them, in the later run where it is still there. */
  title: string;
}

/** The text of a fix in parts, so that nobody takes it apart. */
export interface FixParts {
  /** The first sentence of the advice, and all of it. */
  first: string;
  advice: string;
  /** The advice for a job that has ended: without the words that lead over to commands for its processes. */
  ended: string;
  /** Code or commands to copy; "" where there are none. */
  code: string;
}

/** A part of the floor. */
export interface FloorLine {
  kind: "avoidable-traffic" | "below-attainable" | "below-link-speed" | "limit" | "not-modelled";
  /** Summed over ranks and steps, ns; the lines of a floor sum to its total. */
  total_ns: number;
  /** Mean over ranks and steps, and its share of the step, 0 to 1. */
  ms: number;
  share: number;
  /** From where to where it lies, ms: what fusion avoids may be its reads alone, or its writes too. */
  range_ms: [number, number];
  /** `ms` by class of kernels, those with none left out. */
  by_class: Record<string, number>;
  /** What to record so that more is known, or "". */
  note: string;
}

/** Gaps of at least `from_ms` and less than `to_ms`. */
export interface GapBin {
  from_ms: number;
  to_ms: number;
  count: number;
  sum_ms: number;
}

/** Gaps of one owner by length, the shortest first; with `shorter_ms` they sum to the owner's time in the budget. */
export interface GapLengths {
  bins: GapBin[];
  /** Those shorter than `kept_from_ms`, which are not counted. */
  shorter_ms: number;
  kept_from_ms: number;
}

/** Allocated memory that grows from step to step: a leak, if it goes on. */
export interface GrowingMemory {
  rank: number;
  /** Per step, the median; in so many steps. */
  bytes: number;
  steps: number;
  /** What is allocated in most steps and not released, the largest first. */
  places: MemoryPlace[];
}

/** What a finding costs, as the parts of a sentence: "Rank 5 (node2) costs 43.0 ms of 148.0 ms a step (29 %).". */
export interface Headline {
  /** Who or what costs it: ranks with their nodes, a kind of fault, or the job. */
  subject: string;
  verb: "cost" | "costs";
  /** What it costs of how long a step, and which share that is; rounded as everywhere. */
  cost: string;
  step: string;
  share: string;
  /** "seen once in 6 steps" of a fault that one of several steps shows; else "". */
  often: string;
}

/** A server's iterations of one kind, mean over them. */
export interface IterationKind {
  /** Of prompts, of answers, or of both. */
  kind: "decode" | "mixed" | "prefill";
  count: number;
  mean_ms: number;
  /** Requests whose prompt is read, and requests of which each gets a token. */
  prefills: number;
  decodes: number;
}

/** Kernels of one name: time and launches of a rank's step. The name "" sums up all that are not listed. */
export interface KernelChange {
  name: string;
  before_ms: number;
  after_ms: number;
  before_count: number;
  after_count: number;
}

/** One rank's part of the picture of a step. */
export interface Lane {
  rank: number;
  /** Where its step starts. */
  start_ms: number;
  /** (Index in `findings.OWNERS`, start, end), ms. */
  pieces: [number, number, number][];
}

/** The step that the costliest finding shows: the owners of a few ranks' time, the slowest ones, on one clock. */
export interface Lanes {
  step: number;
  start_ms: number;
  end_ms: number;
  ranks: Lane[];
}

/** Time of a step in one kernel of one of the model's modules, without modules within it; the median over ranks. */
export interface LayerKernel {
  /** The module's, as in `LayerRow`; "" for what no module launches. */
  path: string;
  /** "forward", "backward", "recomputed", "other", "communication", or "idle": nothing runs before this kernel. */
  part: string;
  /** The innermost operator that launched it, "" where none is recorded. */
  operator: string;
  /** "" on a CPU, where operators are the kernels. */
  kernel: string;
  /** The user's function that launched it, in backward that of its forward; null without stacks. */
  source: Source | null;
  step_ms: number;
  /** How often it runs in a step; 0 for idle time. */
  calls: number;
  /** On the rank that takes longest in it. */
  longest_ms: number;
  longest_rank: number;
  /** As in `LayerRow`. An operator's work is that of its longest kernel. */
  flops: number | null;
  moved_bytes: number | null;
  above_ms: number | null;
  p99_ms: number;
  slowest_step_ms: number | null;
  median_step_ms: number | null;
  /** Of the critical path's part in a step, what lies in it, on all ranks together. null without a critical path. */
  critical_ms: number | null;
}

/** Time of a step in one of the model's modules, with all modules within it; the median over ranks, ms. */
export interface LayerRow {
  /** As "layers.0.mlp", or "layer 3" where layers are guessed; "" for the whole step, which is the first row. */
  path: string;
  /** Modules around it. */
  level: number;
  step_ms: number;
  /** In which kernels and copies of it run: in forward, in backward, forward computed again within backward, and else. */
  forward_ms: number;
  backward_ms: number;
  recomputed_ms: number;
  other_ms: number;
  /** In which only communication runs that it launched; and in which nothing runs before its next kernel. */
  communication_ms: number;
  idle_ms: number;
  /** On the rank that takes longest in it. */
  longest_ms: number;
  longest_rank: number;
  /** Memory that it allocates: held when most is allocated, and all of a step, bytes. null where no trace records memory (profile_memory=True). */
  peak_bytes: number | null;
  allocated_bytes: number | null;
  /** What its operators have to do in a step: floating-point operations, and bytes, each tensor read or written once; and their time beyond what the GPU needs for both. null where it is not known (no shapes, or an unknown GPU). */
  flops: number | null;
  moved_bytes: number | null;
  above_ms: number | null;
  /** In which communication runs beside its kernels, and how much longer these take than the same ones alone. null where nothing in the model runs beside communication. */
  beside_ms: number | null;
  beside_longer_ms: number | null;
  /** The 99th percentile over steps, the median over ranks. */
  p99_ms: number;
  /** In the steps `LayerTable.slowest_step` and `median_step`; null where there are none. */
  slowest_step_ms: number | null;
  median_step_ms: number | null;
  /** Of the critical path's part in a step, what lies in it; of the whole step all. null without a critical path. */
  critical_ms: number | null;
  /** An estimate of how long the optimizer works on its parameters: the optimizer's time in proportion to the elements of gradients; it is in no other time of the module. null where sizes of gradients or an optimizer are not there. */
  optimizer_ms: number | null;
}

/** Where in the model a step's time goes. */
export interface LayerTable {
  /** What names modules: "Doctor.watch", "NVTX ranges", "stacks", "annotations" that are paths, "CUDA graph annotations" of a capture, "torch.compile" where its regions stand for modules, or "repeats" where layers are guessed from operators that repeat; several, with "and", where ranks differ. */
  named_by: string;
  /** Kernels of a guessed layer in a step; 0 if modules are named. */
  layer_events: number;
  /** Each module is followed by those within it. Those with less than a thousandth of the step are left out. */
  rows: LayerRow[];
  /** What runs in the modules, those with most time, at most 256; the longest first. */
  kernels: LayerKernel[];
  /** Sentences on the layers that take longer because communication runs beside them. */
  said: string[];
  /** Numbers of the slowest step and of the median one, as most ranks have them, and how many ranks these are. null and 0 where no rank has several steps. */
  slowest_step: number | null;
  median_step: number | null;
  step_ranks: number;
}

/** A step that is in the traces and not in the account. */
export interface LeftOutStep {
  step: number;
  /** Its length, mean over ranks. */
  ms: number;
  reason: string;
}

/** A run of the same model with other buckets, as recorded. */
export interface MeasuredStep {
  run: string;
  /** The place of its buckets on the axis of bucket sizes, MiB. */
  bucket_mb: number;
  step_ms: number;
}

/** A number that a finding rests on. */
export interface Measurement {
  name: string;
  value: number;
  /** "ms", "µs", "GB/s", "of the step", "1" for counts ... */
  unit: string;
  /** What it was measured on, and how many things it sums; empty and null where it is of the whole job. */
  ranks: number[];
  steps: number[];
  count: number | null;
  /** Of time that the fix removes: the owner of the step's time that goes with it; null of all else. */
  owner: string | null;
}

/** What allocated memory is made of, on the rank with the highest peak, and what would save some of it; bytes. */
export interface Memory {
  /** Whether it is the CPU's, whose allocator counts from the beginning of the recording. */
  on_cpu: boolean;
  /** The rank with the highest peak. */
  peak: MemoryRank;
  /** What stands out, a sentence or two for each thing. */
  said: string[];
  /** What the GPU has; null if unknown. */
  capacity: number | null;
  /** At the peak; and what was reserved but unallocated when the allocator reserved more all the same, since it was in pieces, at most: nothing could use it. */
  reserved_but_unallocated: number;
  unusable: number;
  phases: MemoryPhase[];
  largest: MemoryBlock[];
  states: ModelStates;
  growth: GrowingMemory | null;
  /** How many times the batch would fit; null where the capacity is not known. */
  largest_batch: number | null;
  /** Those that save most first. */
  savings: MemorySaving[];
  ranks: MemoryRank[];
}

/** An allocation that is alive at the peak. */
export interface MemoryBlock {
  bytes: number;
  /** One of `MEMORY`, and the phase in which it was allocated. */
  category: string;
  phase: string;
  /** The op that allocates it, "" if unknown; the module and the user's own function around it, where stacks are recorded. */
  op: string;
  module: string;
  source: Source | null;
}

/** The last request that failed for lack of memory; bytes. */
export interface MemoryFailure {
  bytes: number;
  /** Number of the GPU, in the process. */
  device: number;
  /** Whether more was allocated since than it asked for: then the snapshot does not show what it lacked. */
  went_on: boolean;
  /** What the GPU had free beside what was reserved. */
  device_free: number;
  /** What is reserved on the GPU but unallocated: where the request could be, and in private pools of CUDA graphs. */
  free_in_segments: number;
  free_in_pools: number;
  source: Source | null;
  /** Whether no segment is as large, so that whole ones would have to be given back. */
  whole_segments: boolean;
  /** What would have to be released for it, at least: the total, and what it is. */
  to_release: number;
  holders: MemoryHolder[];
}

/** Ranks that ran out of memory, and what to do about it. */
export interface MemoryFinding {
  severity: string;
  ranks: number[];
  title: string;
  why: string;
  /** Advice in words; then, after an empty line, the code or command to copy; and its parts. */
  fix: string;
  fix_parts: FixParts;
}

/** Blocks of one category that one function allocated. */
export interface MemoryHolder {
  category: string;
  source: Source | null;
  bytes: number;
  count: number;
}

/** What the forward pass of a kind of module allocated, in a snapshot of torch.cuda.memory. */
export interface MemoryModule {
  /** The file that has its `forward`, and torch's layer below: "model.py, linear". */
  module: string;
  bytes: number;
  count: number;
}

/** What a phase does to allocated memory, mean over steps; bytes. */
export interface MemoryPhase {
  phase: string;
  change: number;
  /** Allocated at most; null where nothing is allocated or released in it. */
  peak: number | null;
}

/** Where memory is allocated that stays. */
export interface MemoryPlace {
  op: string;
  source: Source | null;
  /** Per step. */
  bytes: number;
}

/** A rank at the peak of its allocated memory; bytes. */
export interface MemoryRank {
  rank: number;
  step: number;
  phase: string;
  /** Allocated at the peak, and reserved beside it. */
  allocated: number;
  reserved: number;
  /** What is allocated is made of, by category: sums to it. */
  categories: Record<string, number>;
  /** More than the median rank, and the category that has most of it; 0 and null where it is comparable. */
  excess: number;
  excess_category: string | null;
}

/** What snapshots of torch.cuda.memory say of a job without traces. */
export interface MemoryRun {
  name: string;
  /** Those whose snapshot's name tells the rank. */
  ranks: number[];
  /** "unknown": no request failed, so nothing says that there was too little memory. */
  verdict: "out-of-memory" | "unknown";
  headline: string;
  /** How the ranks differ, a sentence each. */
  said: string[];
  /** null or one. */
  findings: MemoryFinding[];
  /** The last of each rank. */
  snapshots: MemorySnapshot[];
  warnings: FileWarning[];
}

/** What would save memory at the peak, and what it costs. */
export interface MemorySaving {
  name: string;
  /** What it is, in a few words. */
  title: string;
  /** Bytes of a rank, at most. */
  bytes: number;
  /** Per step, ms; null where the traces do not tell. */
  cost_ms: number | null;
  /** What the numbers rest on. */
  why: string;
  /** Advice in words; then, after an empty line, the code or command to copy. */
  fix: string;
  /** The parts of `fix`. */
  fix_parts: FixParts;
}

/** A segment that the allocator reserves, and that is in use in part; bytes. */
export interface MemorySegment {
  bytes: number;
  /** Reserved but unallocated, and the largest block of that. */
  inactive: number;
  largest_free: number;
  /** What is allocated in it, so that it cannot be given back, the largest first. */
  holders: MemoryHolder[];
}

/** What a snapshot of torch.cuda.memory beside the traces holds; bytes. */
export interface MemorySnapshot {
  file: string;
  /** What stands out, a sentence or two for each thing. */
  said: string[];
  /** As the file's name or its folder's says; null where neither does. */
  rank: number | null;
  allocated: number;
  reserved: number;
  reserved_but_unallocated: number;
  /** What is allocated is made of, by category, as stacks and annotations tell: sums to it. */
  categories: Record<string, number>;
  /** Of what is other, what is allocated by blocks without a stack. */
  without_stack: number;
  /** What is allocated on each GPU of the process, by its number in the process. */
  devices: Record<string, number>;
  /** Whether segments grow (expandable_segments). */
  expandable: boolean;
  /** Blocks that are reserved but unallocated, and the largest: no larger request fits without cudaMalloc. */
  free_blocks: number;
  largest_free: number;
  /** The segments with most that is reserved but unallocated. */
  segments: MemorySegment[];
  failure: MemoryFailure | null;
  /** What is allocated, by category and line, the largest first; and what forward passes allocated, by module. */
  holders: MemoryHolder[];
  modules: MemoryModule[];
}

/** One way in which parallelism divides the ranks, and what its collectives and its sends and receives do in a step. Times are of one of its groups, mean over groups and steps. */
export interface MeshDimension {
  /** "dp", "dp_replicate", "dp_shard", "tp", "pp", "ep", "cp", "sp", or several joined by "+". */
  name: string;
  /** Ranks of one group; from one of them to the next, 0 where that differs. */
  size: number;
  stride: number;
  /** Why it is taken for that dimension, where no description of its process groups names it; "" where one does. */
  inferred: string;
  /** Whether it divides the ranks in another way than the axes before it: groups of experts often do not. */
  is_axis: boolean;
  /** Whether all its groups lie within a node; null where nodes are not known. */
  within_node: boolean | null;
  /** Collectives of a group, and 1e6 bytes of them; null where the traces do not tell the sizes. The calls and all below are null where no group has the traces of two ranks with matched collectives. */
  calls: number | null;
  megabytes: number | null;
  /** Bus bandwidth as in nccl-tests, GB = 1e9 bytes per second; null where sizes are not known. */
  bus_gb_s: number | null;
  /** Straggler wait, mean over ranks; communication without wait; the part of it with no compute beside it. */
  wait_ms: number | null;
  transfer_ms: number | null;
  exposed_ms: number | null;
  /** The same three as shares of the step. */
  wait_share: number | null;
  transfer_share: number | null;
  share: number | null;
  /** What could be better about it though nothing is wrong, in sentences. */
  advice: string[];
}

/** The dimensions of a job and each rank's place in them. */
export interface MeshTable {
  dimensions: MeshDimension[];
  /** Of each rank its place in its group of each dimension; dimensions in which it has no group are left out. */
  coordinates: Record<string, Record<string, number>>;
}

/** What the model's states take on a rank, by its gradients; bytes, None where that is not known. */
export interface ModelStates {
  parameters: number | null;
  gradients: number | null;
  optimizer_states: number | null;
  /** Class of the optimizer, "" if unknown. */
  optimizer: string;
}

/** A module of the model in both runs: time of a step with all modules within it, the median over ranks, ms. */
export interface ModuleChange {
  /** "layers.0.mlp", "" for the whole step; 0 ms where a run has none, or too little of it. */
  path: string;
  /** How many modules are around it. */
  level: number;
  before_ms: number;
  after_ms: number;
}

/** A kernel of a module in both runs: its time in a step without modules within, the median over ranks, ms. */
export interface ModuleKernelChange {
  /** The module's, as in `ModuleChange`; then as in `findings.LayerKernel`. */
  path: string;
  part: string;
  operator: string;
  kernel: string;
  source: Source | null;
  before_ms: number;
  after_ms: number;
}

/** Calls of one kind and size, as NCCL logged them (NCCL_DEBUG_SUBSYS=COLL). */
export interface NcclCalls {
  /** "all_reduce" ... */
  kind: string;
  /** What one rank gives, as the call's count and element type say. */
  bytes: number;
  /** Of all processes. */
  times: number;
}

/** What NCCL's tuner chose for a kind and size, by the traces, else by its log (NCCL_DEBUG_SUBSYS=TUNING). */
export interface NcclChoice {
  kind: string;
  bytes: number;
  /** "ring", "tree", "NVLS" ..., and "LL", "LL128" or "Simple". */
  algorithm: string;
  protocol: string;
  /** Channels that it goes through; 0 where that is not logged. */
  channels: number;
  times: number;
  /** Name of the process group, where calls could be matched to its collectives by opCount: then those beside the traced ones are counted. Else "". */
  group: string;
}

/** What NCCL's own logs (NCCL_DEBUG=INFO) say that the job's ranks use. */
export interface Network {
  version: string;
  /** "P2P", "SHM", "NET/IB/GDRDMA", "NET/Socket" ..., each with the ranks that use it, as far as they are known. */
  transports: Record<string, number[]>;
  /** Channels of collectives, of the communicator that has fewest; 0 if unknown. */
  channels: number;
  /** The ranks in the order of the first channel's ring; empty if unknown. */
  ring: number[];
  /** Interfaces and network cards. */
  interfaces: string[];
  /** Networks that NCCL tried to use and could not, such as "IB". */
  unavailable: string[];
  /** NCCL_... variables that the job set. */
  settings: Record<string, string>;
  /** Lines of NCCL WARN, after their time where they have one. */
  warnings: string[];
  /** Lines of all files, whoever wrote them. */
  lines: number;
  /** Calls and choices, those that came most often first. */
  calls: NcclCalls[];
  choices: NcclChoice[];
  /** The parent of each rank in the first channel's tree, -1 of the root; empty if unknown. */
  tree: number[];
}

/** An operator, annotation or runtime call: what a rank's step spends in it and in nothing within it. The device's time is that of what was launched directly inside; of collectives it counts their waiting too. The name "" sums up all that are not listed. */
export interface OperatorChange {
  name: string;
  before_host_ms: number;
  after_host_ms: number;
  before_device_ms: number;
  after_device_ms: number;
  before_count: number;
  after_count: number;
}

/** A stretch of the critical path on one rank. */
export interface PathPiece {
  rank: number;
  /** One of `OWNERS`; "wait" only for ranks without a trace. */
  owner: string;
  /** One of `PHASES`, on the device that of what launched it; null where the trace does not tell. */
  phase: string | null;
  /** The collective's kind, the call that blocks, or the user's own function; "" if unknown. */
  what: string;
  /** Since the step's start. */
  start_ms: number;
  ms: number;
}

/** The critical path's part in a step: between the ends of the step before and of this one, on their last ranks. */
export interface PathStep {
  step: number;
  /** On the clock of the first rank, ns. */
  start_ns: number;
  end_ns: number;
  /** In order of time; they sum to the part. */
  pieces: PathPiece[];
}

/** The answer that the tab asks for. */
export interface PlanAnswer {
  plan: PlanResult;
  /** Fields of questions that the record cannot answer; empty if the tab did not ask for them. */
  unanswerable: Refusal[];
}

/** Predictions over the values of one field. */
export interface PlanCurve {
  /** Name of the field of `Question`. */
  field: string;
  values: (number | string)[];
  points: Prediction[];
  /** The value with the shortest step. */
  best: number | string;
  /** The first and the last of the values around it whose steps are within 1 % of that step. */
  flat: [number | string, number | string];
  /** Where scaling breaks, for a curve over ranks. */
  breaks: Breaks | null;
}

/** The answer to a question for one run. */
export interface PlanResult {
  run: string;
  world_size: number;
  ranks: number;
  steps: number[];
  /** The step as recorded. Predictions are of such a step too: they include what tracing adds. */
  now_ms: number;
  /** The recorded step by owner, ms. */
  owners_ms: Record<string, number>;
  buckets: Buckets | null;
  /** How the record shards its states; null where it does not, or where its collectives do not show it. */
  sharded: ShardedRecord | null;
  /** What each rank stores and sends in the record; null if the question is not about sharding. */
  rank_bytes: RankBytes | null;
  prediction: Prediction | null;
  curves: PlanCurve[];
  /** With a curve over bucket sizes: the runs of the log directory that send the same gradients and have no fault but their buckets, this run first. */
  measured: MeasuredStep[];
  refusals: Refusal[];
}

/** The predicted step for one question. */
export interface Prediction {
  question: Question;
  step_ms: number;
  /** The least that the step is expected to take. */
  low_ms: number;
  /** The most that it is expected to take. */
  high_ms: number;
  /** `step_ms` minus the recorded step. */
  change_ms: number;
  /** The inputs of the prediction. */
  rests: Rests[];
  /** The step by owner, ms, which sum to it; empty for the points of a curve. */
  owners_ms: Record<string, number>;
  /** What each rank stores and sends; null if the question is not about sharding. */
  rank_bytes: RankBytes | null;
  /** null if the question is not about ranks. */
  scaling: Scaling | null;
}

/** The step if some faults were fixed. */
export interface Prospect {
  /** Ids of the findings that are fixed. */
  fixed: string[];
  /** Mean over ranks and steps, now and then, ms. */
  step_ms: number;
  without_ms: number;
  /** From where to where `without_ms` lies in 8 of 10 jobs. */
  range_ms: [number, number];
}

/** What to change in a job; a field that is not set stays as recorded. */
export interface Question {
  /** `bucket_cap_mb` of DistributedDataParallel. */
  bucket_mb: number | null;
  /** Ranks of the job, each with as much work as now. */
  ranks: number | null;
  /** Ranks along each dimension, as "dp=16,tp=4,pp=4"; those that are not named stay as recorded. */
  mesh: string | null;
  /** With `ranks` or `mesh`: all ranks together have as much work as now (strong scaling). */
  strong: boolean;
  /** How many times as fast each transfer is. */
  links: number | null;
  /** Name of a calibration whose links the job has. */
  links_of: string | null;
  /** What gradients are sent as: float32, float16, bfloat16, float8. */
  dtype: string | null;
  /** How states are sharded: ddp, zero1, zero2, zero3 or hsdp. */
  sharding: string | null;
  /** How many units ahead the parameters are gathered. */
  prefetch: number | null;
  /** Whether the CPU issues each all-gather of FSDP as soon as it has issued the collective before it. */
  gathers_in_time: boolean;
  /** Whether shards are stored and updated on the CPU. */
  offload: boolean;
  /** Backward passes for each AllReduce of the gradients; the step is then that of one of them. */
  accumulate: number | null;
  /** Workers of the DataLoader. */
  workers: number | null;
  /** Whether batches are copied from pinned memory. */
  pin_memory: boolean | null;
  /** Another device by its name. */
  device: string | null;
  /** Whether the GPU never waits for launches, as with CUDA graphs. */
  graphs: boolean;
  /** Findings that are fixed, by id. */
  fixed: string[];
}

/** How much of the model's states each rank stores, and how much it sends in a step; bytes. */
export interface RankBytes {
  /** Parameters on the GPU, by the formulas of ZeRO. */
  parameters: number;
  /** Gradients on the GPU, by these formulas. */
  gradients: number;
  /** The optimizer's states on the GPU, by these formulas. */
  optimizer_states: number;
  /** The units that are gathered at a time, on the GPU. */
  gathered: number;
  /** All that is stored on the CPU. */
  on_cpu: number;
  /** What the rank sends in a step. */
  sent: number;
}

/** What the fix of a finding or an opportunity alone would bring; None where the workload does not say. */
export interface RateGain {
  /** Its id. */
  finding: string;
  /** More tokens and samples a second and GPU. */
  tokens_per_second: number | null;
  samples_per_second: number | null;
  /** What the same steps would cost less in a day, of all GPUs. */
  money_per_day: number | null;
  /** Energy that the same steps would take less in a day, of all GPUs, kWh, at most. */
  energy_kwh_per_day: number | null;
}

/** The step in the user's units, and energy; None where the workload, or no captured power, does not say. */
export interface Rates {
  workload: Workload;
  /** Per GPU. */
  tokens_per_second: number | null;
  samples_per_second: number | null;
  /** Of all GPUs of the job. */
  money_per_day: number | null;
  /** Share of the peak FLOPS that the user's model FLOPs take, and with what is computed again; and the same of the FLOPs that the doctor counts, 0 to 1. null where the peak is not known, too. */
  mfu: number | null;
  hfu: number | null;
  counted_mfu: number | null;
  counted_hfu: number | null;
  /** Of each finding and opportunity that costs something, in their order. */
  gains: RateGain[];
  /** Of the price, as the user writes it: "EUR"; "" if unknown. */
  currency: string;
  /** Of all GPUs of the job in a day, kWh, at the highest power that was seen on each: at most. */
  energy_kwh_per_day: number | null;
}

/** What to record once more, to learn more of a finding. */
export interface RecordingToMake {
  /** What the traces at hand do not tell. */
  why: string;
  /** For a job that has the doctor's recorder; of Nsight Systems' recordings for a job that it starts. */
  command: string;
}

/** A question that this run cannot answer. */
export interface Refusal {
  /** The field of the question. */
  question: string;
  /** Why, and what to record to get an answer. */
  reason: string;
  /** The values of a curve that are refused; empty if all are. */
  values: (number | string)[];
}

/** An input of a prediction, and how it is known. */
export interface Rests {
  basis: "assumed" | "fitted" | "measured";
  /** The input, such as "Time of all_reduce over bytes". */
  what: string;
  /** How it is known, such as the fit with its error. */
  detail: string;
}

/** Calls of an operator with the same inputs in both runs: how close they come to their attainable speed. */
export interface RoofChange {
  operator: string;
  /** Sizes of its first tensors, as "16x5185x64, 16x64x5185", and the type of the first. */
  inputs: string;
  dtype: string;
  /** Share of the attainable speed, 0 to 1; beyond 1 where the cache helps. */
  before_share: number;
  after_share: number;
  /** Time of a rank's step. */
  before_ms: number;
  after_ms: number;
}

/** How a rule ended, with the reason in words: "no data" is never "healthy". */
export interface RuleOutcome {
  rule: string;
  status: "clear" | "error" | "finding" | "not-applicable" | "opportunity";
  reason: string;
}

/** The answer to `run?run=NAME`. */
export interface RunAnswer {
  diagnosis: Diagnosis;
  /** null where they could not be made. */
  views: Views | null;
  state: "ready";
}

/** How well a job of another number of ranks scales. */
export interface Scaling {
  /** Weak scaling: the step of one rank divided by the step of all ranks. Strong scaling: the step of one rank with all the work, divided by the number of ranks times their step. */
  efficiency: number;
  /** By ascending message size; empty for one rank. */
  algorithms: Algorithm[];
}

/** What a job is, as far as advice depends on it. */
export interface Setting {
  /** How many hosts the ranks are on; 0 where some rank's host is not known. */
  hosts: number;
  /** What carries out collectives: "nccl" (RCCL too), or the CPU's "gloo", "mpi" or "ucc". */
  backend: string;
  /** What computes. */
  device: "cpu" | "cuda" | "rocm";
  /** Whether the doctor's own `Doctor` captured it; else a profiler that the training script sets up did. */
  has_doctor: boolean;
  /** The log directory of that `Doctor`; "" without one. */
  logdir: string;
  /** What recorded it: torch.profiler, in a `Doctor` or not, or Nsight Systems. */
  recorder: "nsys" | "profiler";
}

/** How the record shards its parameters, gradients and optimizer states (FSDP). */
export interface ShardedRecord {
  /** zero2: parameters stay gathered after forward (`reshard_after_forward=False`, SHARD_GRAD_OP); zero3: backward gathers them again (FULL_SHARD). */
  stage: string;
  /** Ranks that store one copy of the states, and copies that the job has (more than one with HSDP). */
  shards: number;
  copies: number;
  /** Units that are gathered, and the parameters of the smallest, the median and the largest one, bytes. */
  units: number;
  least_bytes: number;
  median_bytes: number;
  most_bytes: number;
  /** How many units ahead the parameters are gathered. */
  ahead_forward: number;
  ahead_backward: number;
  /** All-gathers of a step and rank. */
  gathers: number;
  /** Those of them that start as soon as the CPU has launched them, with the device idle: they wait for the CPU. */
  late_gathers: number;
  /** How long these have no kernel beside them, ms a step. */
  late_ms: number;
}

/** A function of the user's own code, as Python stacks have it, or a kernel that torch.compile generated. */
export interface Source {
  file: string;
  /** Where the function begins, 1 for a generated kernel; of one that ran already when recording began, where it was then. Stacks tell no other. */
  line: number;
  function: string;
}

/** A line of a file that is here. */
export interface SourceLine {
  /** Absolute, for an editor. */
  path: string;
  text: string;
}

/** The mean step time of both runs. */
export interface StepTime {
  before_ms: number;
  after_ms: number;
  /** Share of the earlier step that the later one is longer; and where it lies with 95 % confidence (`chance`), null where a run has one step. */
  change: number;
  interval: [number, number] | null;
  /** Whether the change is more than chance and `least_change` or more. */
  tells: boolean;
  /** A smaller change, as a share of the earlier step, of it or of one of its parts is never significant. */
  least_change: number;
  /** Why there is no interval, or a wide one; "" where there are steps enough. */
  doubt: string;
}

/** A limit that a rule compared with, shown beside its finding. */
export interface Threshold {
  name: string;
  value: number;
  unit: string;
  reason: string;
}

/** What else to fix where the fix of one finding alone saves much less than the finding costs. */
export interface Together {
  /** Ids of the other findings. */
  findings: string[];
  /** What all these fixes save together, ms a step. */
  saved_ms: number;
  /** The same in one sentence. */
  sentence: string;
}

/** What the collectives of one kind do in one process group in a step, mean over steps; GB = 1e9 bytes. */
export interface TrafficRow {
  kind: string;
  /** Name of the group as the trace has it, "" if unknown. */
  group: string;
  /** What the group is for (TP, DP, PP, EP, CP, SP, or several joined by "+"), "" where its description does not say. */
  parallelism: string;
  /** Its ranks that have a trace, and how many it has. */
  ranks: number[];
  size: number;
  /** Element types, as torch names them. */
  dtypes: string[];
  calls: number;
  /** 1e6 bytes; null, as the bandwidths, where the trace does not tell the sizes. */
  megabytes: number | null;
  /** From a rank's arrival to the last one's, hidden or exposed, mean over ranks. */
  wait_ms: number;
  /** From the last arrival to the end, and the share of that beside compute on the rank that arrives last. */
  transfer_ms: number;
  hidden_share: number;
  /** Bytes over transfer, and the same on each link (with nccl-tests' factors). */
  algorithm_gb_s: number | null;
  bus_gb_s: number | null;
  /** null where the sizes are unknown, or all the same. */
  fit: AlphaBeta | null;
}

/** Where the unexplained part of the step lies. */
export interface Unexplained {
  /** The owner of most of it. */
  owner: string;
  /** null where the traces do not tell phases. */
  phase: string | null;
  ranks: number[];
  steps: number[];
}

/** What the page needs beside the diagnosis; R ranks, S steps. */
export interface Views {
  /** Whether the traces themselves are elsewhere. */
  from_digests: boolean;
  ranks: number[];
  nodes: string[];
  /** What each rank does in reinforcement learning; "" where all do the same, and in every other job. */
  roles: string[];
  device: string;
  steps: number[];
  owners: string[];
  /** Shape (R, S), as all of these. */
  step_ms: number[][];
  busy_ms: number[][];
  /** When each step's window starts, on the rank's own clock. */
  start_ns: number[][];
  budget_ms: Record<string, number[][]>;
  /** How long the gaps of each owner are, of all ranks and steps. */
  gaps: Record<string, GapLengths>;
  lanes: Lanes;
  /** On the common clock, as text: JavaScript's numbers do not hold it. */
  origin_ns: string;
  /** When each step starts on the common clock, after the origin. */
  clock_ms: number[][];
  /** From when to when there are steps, those of the host too, after the origin. */
  record_ms: [number, number];
  /** How to get Python stacks; empty where some trace has them. */
  stacks: FixParts;
}

/** A slice with something around the evidence, as the route `slice` takes it. ns on the common clock, as text: JavaScript's numbers do not hold them. */
export interface Window {
  ranks: number[];
  start: string;
  end: string;
  /** Start and end of the evidence itself. */
  seen: [string, string];
}

/** What a step of the whole job does and what a GPU costs, as the user says; None where the user does not. */
export interface Workload {
  tokens_per_step: number | null;
  samples_per_step: number | null;
  /** Floating-point operations of the model, forward and backward, without what is computed again. */
  model_flops_per_step: number | null;
  /** The price of a GPU for an hour, in any currency. */
  gpu_hour: number | null;
}
