//! THE TABLE: every kind of statement that the findings, the card of a run and the commands make
//! that tell of memory. A row has its name in JSON and its unit, its words, the figures that it
//! needs, when it may be said, and how far it may be off.

use serde::{Deserialize, Serialize};

use crate::claims::row::{ClaimGroup, ClaimRow, ClaimUnit, Tolerance, claims};

/// The tolerance of a rate.
const RATE: Tolerance = Tolerance::Percent { of_truth: 10, in_stairs: 25 };
/// The tolerance of a time until memory runs out.
const LEFT: Tolerance = Tolerance::Percent { of_truth: 40, in_stairs: 40 };
/// The tolerance of bytes that are measured, such as growth since its onset.
const MEASURED: Tolerance = Tolerance::Percent { of_truth: 10, in_stairs: 10 };
const EXACT: Tolerance = Tolerance::Exact;
const WORDS: Tolerance = Tolerance::Words;

claims! {
    Growth {
        RatePerStep "rate_per_step"(BytesPerStep): "live memory grows by …/step",
            needs ["slope_bytes_per_step", "onset_step"], when "a trend holds that is no faster and faster", RATE;
        RatePerHour "rate_per_hour"(BytesPerSecond): "memory of the process grows by …/h",
            needs ["slope_bytes_per_second"], when "the same, and it has no steps", RATE;
        Accelerates "accelerates": "live memory grows faster and faster",
            needs ["is_accelerating"], when "the trend bends upwards", WORDS;
        Grows "grows": "live memory grows",
            needs ["growth_bytes"], when "a trend holds, and its pace is not known", WORDS;
        Growth "growth"(Bytes): "… since",
            needs ["growth_bytes"], when "a trend holds, or one has ended", MEASURED;
        Since "since"(Step): "since step …",
            needs ["onset_step"], when "the growth has an onset in steps", Tolerance::Onset;
        GrownIn "grown_in"(Seconds): "in …",
            needs ["growth_bytes", "slope_bytes_per_second"], when "the growth has an onset in time only", Tolerance::Onset;
        LevelSince "level_since"(Step): "until step …; level since",
            needs ["level_since_step"], when "the growth has ended", Tolerance::Onset;
        LevelSinceTime "level_since_time"(Time): "until …; level since",
            needs ["level_since_time"], when "the same, and it has no steps", Tolerance::Onset;
        Full "full": "the card is full",
            needs ["is_full"], when "growth has ended where the memory is at the limit of HIGH PRESSURE", WORDS;
        BlocksKept "blocks_kept": "each step keeps … blocks more, … each",
            needs ["kept_blocks"], when "the number of live blocks accumulates", RATE;
        BlocksFade "blocks_fade": "new blocks come ever more rarely, as in a cache that fills",
            needs ["kept_blocks"], when "the number of live blocks fades", WORDS;
        BlocksLevel "blocks_level": "the number of blocks is level",
            needs ["kept_blocks"], when "the number of live blocks is level", WORDS;
        ChildrenHold "children_hold"(Bytes): "they hold …",
            needs ["children"], when "the memory of child processes grows, and can be read", EXACT;
        ShmHolds "shm_holds"(Bytes): "it holds … of …",
            needs ["shm"], when "what is in `/dev/shm` grows", EXACT;
        Stalled "stalled"(Seconds): "no steps for …",
            needs ["stalled_seconds"], when "no step came for ten usual ones", EXACT;
        PhaseKeeps "phase_keeps"(Bytes): "after `…` the process keeps …, … ends ago it was …",
            needs ["floor_bytes", "floor_before_bytes", "floor_ends"], when "a phase left more behind three times in a row", EXACT;
        PhaseFull "phase_full"(Seconds): "at this rate the device is full in about …",
            needs ["full_in_seconds"], when "the same, and the capacity is known", LEFT;
    }
    Cause {
        Line "line"(Ratio): "…% of it is allocated at …",
            needs ["site"], when "a snapshot shows a line that leaks", EXACT;
        NoLine "no_line": "no single line explains it",
            needs ["site"], when "a snapshot shows growth, and no line that has most of it", WORDS;
        LargestLine "largest_line"(BytesPerStep): "the largest growth in its snapshot is …/step at …",
            needs ["site"], when "the same, and one line grows more than the others", RATE;
        ShortSnapshot "short_snapshot"(Steps): "its snapshot has … whole steps, too few for a verdict",
            needs ["site"], when "a snapshot has too few steps", EXACT;
        Holder "holder"(BytesPerStep): "held by … (list, … more/step)",
            needs ["holder"], when "a search of the process named an object that grows", RATE;
        HolderShare "holder_share"(Ratio): "…% of the growth",
            needs ["holder", "slope_bytes_per_step"], when "the holder's rate and that of the growth are known", MEASURED;
        HolderLine "holder_line"(BytesPerStep): "allocated at … (… more/step)",
            needs ["holder"], when "tracing found the line that allocates", RATE;
        Removal "removal": "no line found in … removes from it",
            needs ["holder"], when "the code of the holder was read", WORDS;
        NoTensor "no_tensor": "no growing tensor was found",
            needs ["searched"], when "a search ended, complete or not, and named nothing", WORDS;
        NoHolder "no_holder": "no object that holds it was found",
            needs ["searched"], when "the same, and it is known what grows", WORDS;
        ScannedLevel "scanned_level": "it hardly grew while objects were scanned",
            needs ["searched"], when "a search named nothing, and the memory grew much more slowly meanwhile", WORDS;
        Scanned "scanned"(Ratio): "among the objects scanned (… of those met)",
            needs ["searched"], when "a search that named nothing counted what it read", EXACT;
        NativeGrowth "native_growth": "Python does not allocate what grows",
            needs ["searched"], when "tracing saw the growth, and no line of Python", WORDS;
        Spread "spread": "Python allocates it at many lines, each a small part",
            needs ["searched"], when "tracing saw the growth, and no line has much of it", WORDS;
        ArenasKeep "arenas_keep"(BytesPerStep): "…/step were freed and stay in glibc's arenas",
            needs ["searched"], when "tracing saw it freed", RATE;
        LineUnknown "line_unknown": "no line is known: …",
            needs ["searched"], when "tracing could not run, or saw no growth", WORDS;
        Freed "freed"(Ratio): "…% of the last … were freed and stayed with glibc: nobody holds them",
            needs ["malloc"], when "two readings of the C library show that, or one allows no other reading", MEASURED;
        InUse "in_use"(Ratio): "…% of the last … are in use: something holds them",
            needs ["malloc"], when "two readings of the C library show that", MEASURED;
        Fills "fills"(Steps): "full in … steps at …",
            needs ["filling"], when "the holder has a bound, and nothing makes that doubtful", RATE;
        FillsLeaving "fills_leaving"(Bytes): "… will be left",
            needs ["filling"], when "the same, and the capacity is known", LEFT;
        BoundInDoubt "bound_in_doubt": "which has a bound, but its new items differ in size",
            needs ["filling"], when "the holder has a bound that does not count", WORDS;
        WillNotFit "will_not_fit"(Steps): "… will not fit: full in … steps at …, … are left",
            needs ["too_large"], when "the holder has a bound above what is left", RATE;
    }
    End {
        Left "left"(Bytes): "… left",
            needs ["headroom_bytes"], when "growth goes on, and the capacity is known", MEASURED;
        NothingLeft "nothing_left"(Bytes): "nothing is left",
            needs ["headroom_bytes"], when "the same, and the headroom is 0", EXACT;
        ContainerLimit "container_limit"(Bytes): "of its container's …",
            needs ["container"], when "the container runs out first", EXACT;
        TimeLeft "time_left"(Seconds): "out of memory in about …",
            needs ["headroom_bytes", "slope_bytes_per_second"], when "it is known within a factor of three, and neither a bound nor the end of the rank comes first", LEFT;
        StepsLeft "steps_left"(Steps): "… steps",
            needs ["headroom_bytes", "slope_bytes_per_step"], when "the same, and it has steps", LEFT;
        LeastTimeLeft "least_time_left"(Seconds): "out of memory in at least …",
            needs ["headroom_bytes", "slope_upper_bytes_per_step"], when "only the lower end of the time left is known", LEFT;
        LeastStepsLeft "least_steps_left"(Steps): "at least … steps",
            needs ["headroom_bytes", "slope_upper_bytes_per_step"], when "the same, and it has steps", LEFT;
        PaceUnknown "pace_unknown": "how long a step takes is not known yet",
            needs ["oom_eta_steps"], when "steps are left, and their time is not known", WORDS;
        RunEnds "run_ends"(Seconds): "the run ends at step … in …, … before memory does",
            needs ["run_end"], when "the ranks agree on a last step, or have a deadline", LEFT;
        Restarts "restarts"(Count): "it takes … restarts from a checkpoint",
            needs ["run_end"], when "memory ends before the run, and its growth is straight", LEFT;
        LetRun "let_run": "let it run",
            needs ["run_end"], when "the run clearly ends first", WORDS;
        RestartBuys "restart_buys"(Seconds): "each buys …",
            needs ["run_end", "headroom_bytes", "growth_bytes", "slope_bytes_per_second"], when "restarts get the run to its end, and the growth is no container's", LEFT;
        StopRun "stop_run": "stop it, no restart gets it there",
            needs ["run_end"], when "it would take more than 20 restarts", WORDS;
        ChangeRun "change_run": "its peaks are level: change the run",
            needs ["is_level"], when "live memory holds at HIGH PRESSURE, its peaks are level, and no memory of the run grows", WORDS;
        RunEnded "run_ended"(Step): "the run ended before, at step …",
            needs ["run_end"], when "the run is over, and took its last step", EXACT;
        EndOfRun "end_of_run": "The run ends …",
            needs ["total_steps", "deadline"], when "the end of a run is known that goes on", WORDS;
    }
    OutOfMemory {
        OomEnded "oom_ended"(Step): "ended out of memory at step …",
            needs ["is_fatal"], when "the rank reported the error as its end", EXACT;
        OomKilled "oom_killed"(Step): "the kernel killed its process for lack of memory",
            needs ["is_kill"], when "the kernel's count of kills rose, or the launcher saw it", EXACT;
        OomLikelyKilled "oom_likely_killed"(Step): "the kernel likely killed its process for lack of memory: it fell silent …",
            needs ["likely_kill"], when "a rank fell silent while its container was full, or lost others", EXACT;
        OomCaught "oom_caught"(Step): "caught an out-of-memory error after step … and …",
            needs ["ooms", "is_last"], when "no step followed the error", EXACT;
        OomWentOn "oom_went_on"(Step): "ran out of memory before step … and went on",
            needs ["ooms"], when "a step followed the error", EXACT;
        OomLimit "oom_limit"(Bytes): "at its own limit of …",
            needs ["limit"], when "the device had more than the process may take", EXACT;
        OomRequested "oom_requested"(Bytes): "… were requested",
            needs ["requested_bytes"], when "the error names them", EXACT;
        OomHeadroom "oom_headroom"(Bytes): "the last headroom was …",
            needs ["headroom_bytes"], when "it was known before the error", MEASURED;
        OomGrowth "oom_growth"(Bytes): "live memory had grown by …",
            needs ["growth_bytes"], when "live memory was growing before the error", MEASURED;
        OomLine "oom_line"(Bytes): "… requested …",
            needs ["site"], when "a snapshot of the error was read", EXACT;
        OomHeld "oom_held": "while most memory was held: … by …",
            needs ["site"], when "the same", WORDS;
    }
    Amount {
        Pressure "pressure"(Ratio): "the allocated peak is at …% of …",
            needs ["pressure_ratio", "basis"], when "a recent peak is near the capacity", EXACT;
        PastPressure "past_pressure"(Ratio): "the allocated peak was at …% of …",
            needs ["pressure_ratio", "basis"], when "a run is over, and a peak of it was", EXACT;
        Capacity "capacity"(Bytes): "…",
            needs ["capacity_bytes"], when "it is known", EXACT;
        NeverLive "never_live"(Ratio): "…% of it was never live at the same time",
            needs ["never_live_ratio"], when "a fifth or more of the capacity was reserved and never live", EXACT;
        PrivatePools "private_pools"(Bytes): "… of it is in private pools (CUDA graphs, MemPools)",
            needs ["private_pools_bytes"], when "a fifth or more of the capacity", EXACT;
        TakenAtStart "taken_at_start"(Bytes): "… of it was taken at the start, and next to nothing since",
            needs ["taken_at_start_bytes"], when "live memory has not risen since the first part of its life, and all that comes on top could be twice as much", EXACT;
        Imbalance "imbalance"(Ratio): "its peak is …% above the median of the other ranks",
            needs ["imbalance_ratio", "median_bytes"], when "the peak of a rank stands out", EXACT;
        LowPeak "low_peak"(Ratio): "its peak is …% below the median of the other ranks",
            needs ["peak_imbalance_ratio", "median_bytes"], when "a run is over, and the peak of a rank is far below", EXACT;
        Unused "unused"(Ratio): "…% of the … that the allocator had reserved at its peak was never live at the same time",
            needs ["peak_fragmentation_ratio"], when "half of the reserved peak or more", EXACT;
        Outside "outside"(Bytes): "… of the process is outside its allocator",
            needs ["outside_bytes"], when "it is 15 % of the device or more", EXACT;
        GpuLost "gpu_lost": "the driver answers …",
            needs ["code"], when "a device answers with an error that ends its use", WORDS;
    }
    Advice {
        Advice "advice": "(of each diagnosis: diagnoses.md)",
            needs [], when "a finding has no better advice of its own", WORDS;
        AdviceContainer "advice_container": "Look at the container's other processes …",
            needs ["container"], when "a container grows, and none of its ranks", WORDS;
        AdviceLevel "advice_level": "Nothing, unless it grows again. …",
            needs ["level_since_time"], when "the growth has ended", WORDS;
        AdviceFull "advice_full": "The memory is full, so it is level because it cannot grow further. …",
            needs ["is_full"], when "growth has ended where the memory is full", WORDS;
        AdviceFits "advice_fits": "Nothing: it fits. …",
            needs ["filling"], when "the holder's bound fits, and withholds the page", WORDS;
        AdviceRunFirst "advice_run_first": "Let it run: it ends before memory does. …",
            needs ["run_end"], when "the run clearly ends first", WORDS;
        AdviceChildren "advice_children": "Look at what each worker keeps …",
            needs ["children"], when "the memory of child processes grows", WORDS;
        AdviceShm "advice_shm": "Look at shared memory that is closed but never unlinked …",
            needs ["shm"], when "what is in `/dev/shm` grows", WORDS;
        AdviceHolder "advice_holder": "Look at … of …: it keeps more and more. …",
            needs ["holder"], when "a search named the object that grows", WORDS;
        AdviceLine "advice_line": "Look at …: what it allocates is kept across steps. …",
            needs ["site"], when "the line is known, and no object", WORDS;
        AdviceNoTensor "advice_no_tensor": "No growing tensor was found: look at …",
            needs ["searched"], when "a search named nothing", WORDS;
        AdvicePartlyRead "advice_partly_read": "The search for the holder could not read all objects of the program …",
            needs ["searched"], when "the same, and it did not read all", WORDS;
        AdviceNative "advice_native": "Python does not allocate it: look at native code …",
            needs ["searched"], when "tracing saw no line of Python", WORDS;
        AdviceFreed "advice_freed": "The program frees it, and …",
            needs ["malloc"], when "most of the growth was freed and stays with the C library", WORDS;
        AdviceCalls "advice_calls": "Look at what the program keeps from call to call …",
            needs ["signal"], when "growth by time, of which nothing else is known", WORDS;
        AdviceProcess "advice_process": "stepmem sees no more of this process than its memory. …",
            needs ["signal"], when "an unmanaged process grows", WORDS;
        AdviceTooLarge "advice_too_large": "Give it a lower bound …",
            needs ["too_large"], when "a holder's bound will not fit", WORDS;
        AdvicePressure "advice_pressure": "Reduce the load …",
            needs ["pressure_ratio"], when "pressure on the host, on memory that is shared, or of a cache that is never live", WORDS;
        AdviceTakenAtStart "advice_taken_at_start": "Nothing, unless it grows: it was taken at the start …",
            needs ["taken_at_start_bytes"], when "memory that was taken at the start and is level nearly fills the device", WORDS;
        AdviceKill "advice_kill": "Look at host memory …",
            needs ["is_kill"], when "the kernel killed the process", WORDS;
        AdviceGrown "advice_grown": "Without that growth it would have fit …",
            needs ["growth_bytes"], when "the request fits into headroom and growth together", WORDS;
        AdviceLimit "advice_limit": "The process reached its own limit, and its device had more …",
            needs ["limit"], when "the error is one of the process's own limit", WORDS;
        AdviceCallsOom "advice_calls_oom": "Look at the inputs of the last calls …",
            needs ["unit"], when "a program that takes no steps ran out of memory, and no growth or limit explains it", WORDS;
        NothingToDo "nothing_to_do": "Nothing to do.",
            needs ["ranks_judged"], when "all ranks that push were judged, nothing was found, no line rises, and the run did not fail", WORDS;
        LastsLong "lasts_long": "Let it run: at this rate memory lasts for more than 30 days.",
            needs ["ranks_judged", "trend"], when "the same, but a line rises, by so little", WORDS;
        NotAllJudged "not_all_judged": "Let the other ranks take more steps …",
            needs ["ranks_judged"], when "the same, but not all ranks were judged", WORDS;
        AdviceLonger "advice_longer": "Let a run take more steps …",
            needs ["ranks_judged"], when "no rank was judged", WORDS;
        AdviceReport "advice_report": "Push a record per train step.",
            needs ["steps_used"], when "no step came, or the process went on without", WORDS;
        AdviceRise "advice_rise": "Compare with a known stable run …",
            needs ["trend"], when "a line rises, and nothing was found", WORDS;
        AdviceError "advice_error": "Look at the error: nothing that was seen of its memory explains it.",
            needs ["end"], when "a rank failed, and not of memory, or ended without a word", WORDS;
    }
    Story {
        Subject "subject": "Run …, rank … on …",
            needs ["run", "rank"], when "always", WORDS;
        CapacityUnknown "capacity_unknown": "capacity unknown, 80 GiB assumed",
            needs [], when "the capacity is not known", WORDS;
        Seen "seen"(Count): "… train steps, from step … to step …",
            needs ["steps"], when "a record of the subject was taken", EXACT;
        Activity "activity": "… train steps since the exporter began; step …, last push … ago",
            needs ["totals", "last_push_time"], when "an exporter is asked", EXACT;
        Standing "standing": "At the end: …",
            needs ["held"], when "a recording is explained", WORDS;
        Range "range"(Bytes): "Live memory after each step: … to …",
            needs ["floor"], when "a signal has figures", EXACT;
        Mark "mark": "C MEMORY CREEP",
            needs ["events"], when "a chart has marks", WORDS;
        Raised "raised"(Step): "step …: MEMORY CREEP, warning",
            needs ["transition"], when "a finding was raised, or holds", EXACT;
        Cleared "cleared"(Step): "step …: MEMORY CREEP cleared: …",
            needs ["transition", "cause"], when "a finding was cleared", EXACT;
        ShownBy "shown_by"(Bytes): "seen in steps … to …: +… without its largest increment",
            needs ["window"], when "a window, markers, readings or blocks show a finding", EXACT;
        NotYetCreep "not_yet_creep": "not yet creep: …",
            needs ["window"], when "a test stands between MEMORY RISING and MEMORY CREEP", EXACT;
        ShowsLess "shows_less": "shows less by now: …",
            needs ["window"], when "the window no longer shows the finding", EXACT;
        NoFinding "no_finding": "None.",
            needs ["events"], when "no finding was raised, and the subject was judged", WORDS;
        NotJudged "not_judged": "None; judged from step … on",
            needs ["judging_from_step"], when "nothing was found, and creep is not judged yet", EXACT;
        RisesUnfound "rises_unfound": "None so far; but its live memory rises in a straight line. …",
            needs ["trend"], when "nothing was found, and live memory rises straight", WORDS;
        Untested "untested": "…: no window was long enough to be tested",
            needs ["windows"], when "no window of a signal was tested", WORDS;
        Unread "unread": "…: unknown, as the figures for it did not come",
            needs ["windows"], when "a signal was not read, and live memory was", WORDS;
        Outcomes "outcomes": "…: of … windows of up to … pushes, in …% it stayed level",
            needs ["windows"], when "windows of a signal were tested", EXACT;
        Nearest "nearest"(Step): "Nearest to a creep at step …: …",
            needs ["closest"], when "a window came near to a creep", EXACT;
        Acknowledged "acknowledged"(Time): "… is acknowledged until …: …",
            needs ["acks"], when "an operator acknowledged the finding", EXACT;
        Slope "slope"(BytesPerStep): "Live memory: …/step; 95% interval … to …",
            needs ["slope_bytes_per_step"], when "the slope of a signal is known", RATE;
        NoSlope "no_slope": "No slope is known yet.",
            needs ["creep"], when "no slope of a signal is known", WORDS;
        Headroom "headroom"(Bytes): "Headroom: …",
            needs ["headroom_bytes"], when "the capacity is known", MEASURED;
        Recorded "recorded": "(of an earlier version)",
            needs [], when "a file of an earlier version is read, which has words only", WORDS;
    }
    Card {
        Verdict "verdict": "MEMORY CREEP (critical) on rank …",
            needs ["kind", "severity", "ranks"], when "always: the worst that holds, or that nothing does", WORDS;
        Holds "holds"(Time): "it holds since … UTC",
            needs ["since"], when "Prometheus has a finding, and no figures of it", EXACT;
        OfRank "of_rank": "rank …",
            needs ["ranks"], when "several ranks have the finding: the worst of them", WORDS;
        Calm "calm": "no creep, pressure or imbalance",
            needs ["ranks_judged"], when "nothing was found, and a rank was judged", WORDS;
        CalmUnjudged "calm_unjudged": "no pressure or imbalance, and too few steps to judge creep",
            needs ["ranks_judged"], when "nothing was found, and no rank was judged", WORDS;
        PartOfRun "part_of_run"(Count): "of the … of … ranks that push here",
            needs ["ranks_seen", "ranks_expected"], when "ranks push elsewhere", EXACT;
        JudgedRanks "judged_ranks"(Count): "… of … ranks took enough steps to judge creep",
            needs ["ranks_judged", "ranks_seen"], when "some ranks were judged, and others not", EXACT;
        NoSteps "no_steps": "no train step was pushed",
            needs ["steps_used"], when "no step came", WORDS;
        RisesStraight "rises_straight"(BytesPerStep): "live memory rises straight, by …/step",
            needs ["trend"], when "nothing was found, and a line rises straight", RATE;
        RisesOnAverage "rises_on_average"(BytesPerStep): "live memory rises, by …/step on average",
            needs ["trend"], when "nothing was found, and no slope of the interval is level", RATE;
        Failed "failed"(Step): "rank … failed at step …",
            needs ["end"], when "a rank failed, and not of memory, or ended without a word", EXACT;
        Coverage "coverage"(Count): "Run …: … of … ranks, steps … to … in …",
            needs ["coverage"], when "always", EXACT;
        PlannedRestarts "planned_restarts"(Count): "… planned restarts",
            needs ["planned_restarts"], when "`run` started the command again after a checkpoint", EXACT;
        LostSteps "lost_steps"(Steps): "… steps lost",
            needs ["planned_restarts"], when "the same, and attempts go on counting", EXACT;
        LeakCosts "leak_costs"(Ratio): "the leak costs …% of the time",
            needs ["planned_restarts"], when "the same, and this `run` made one", EXACT;
        NeverPushed "never_pushed"(Count): "Never pushed: …",
            needs ["coverage"], when "ranks launched here never pushed", EXACT;
        Lost "lost"(Count): "Lost: rank … after step …",
            needs ["coverage"], when "ranks stopped without a word", EXACT;
        EndedBy "ended_by": "Ended with an error: rank …, at step …",
            needs ["end"], when "ranks ended otherwise than as planned", EXACT;
        OutsideHeld "outside_held"(Bytes): "Outside the allocator: … on …",
            needs ["outside_allocator_bytes"], when "it is a gibibyte, or 5 % of the capacity", EXACT;
        HostHeld "host_held": "Rank …: its container uses … of …",
            needs ["host"], when "host memory is worth a word", EXACT;
        WithoutSteps "without_steps"(Seconds): "Went on without steps: rank …, for … after step …",
            needs ["seconds_without_steps"], when "a rank went on for long after its last step", EXACT;
        Ooms "ooms"(Count): "Out-of-memory errors: …",
            needs ["ooms"], when "there were any", EXACT;
        SnapshotWritten "snapshot_written": "Snapshot of rank …: …",
            needs ["snapshots"], when "a snapshot was written", WORDS;
        MoreRanks "more_ranks"(Count): "… and … more ranks, with peaks of … to …",
            needs ["ranks"], when "the table does not show all ranks", EXACT;
    }
    Comparison {
        Compared "compared": "Verdict: …",
            needs ["verdict"], when "always", WORDS;
        IssueNew "issue_new": "… is new",
            needs ["diagnosis"], when "only the new run has a diagnosis, and the old one could have had it", WORDS;
        IssueGone "issue_gone": "… is gone",
            needs ["diagnosis"], when "only the old run has a diagnosis, and the new one could have had it", WORDS;
        IssueChanged "issue_changed": "… became …",
            needs ["diagnosis"], when "both have it, at another stage or severity", WORDS;
        EndChanged "end_changed": "the run failed on rank … instead of completing",
            needs ["end"], when "one run completed, and the other failed", WORDS;
        LiveChanged "live_changed"(Bytes): "live memory rose from … to …",
            needs ["allocated_bytes"], when "a run does not know its peaks, and live memory differs by more than noise", EXACT;
        PeakAllocatedChanged "peak_allocated_changed"(Bytes): "peak allocated rose from … to …",
            needs ["peak_allocated_bytes"], when "it differs by more than noise, and not because a run is shorter", EXACT;
        PeakReservedChanged "peak_reserved_changed"(Bytes): "peak reserved rose from … to …",
            needs ["peak_reserved_bytes"], when "the same", EXACT;
        HeadroomChanged "headroom_changed"(Bytes): "least headroom fell from … to …",
            needs ["headroom_bytes"], when "the same, and it rests on the same memory", EXACT;
        HostHeadroomChanged "host_headroom_changed"(Bytes): "least host headroom fell from … to …",
            needs ["host_headroom_bytes"], when "the same", EXACT;
        RateChanged "rate_changed"(BytesPerStep): "growth of the fastest rank rose from …/step to …/step",
            needs ["slope_bytes_per_step"], when "a run grows, and the intervals of the rates are apart", RATE;
        SkewChanged "skew_changed"(Ratio): "skew between ranks rose from …% to …%",
            needs ["skew_pct"], when "it differs by more than 5 points, and the worse is a tenth or more", EXACT;
        LostChanged "lost_changed"(Count): "ranks lost: … instead of …",
            needs ["ranks_lost"], when "the numbers differ", EXACT;
        OomsChanged "ooms_changed"(Count): "out-of-memory errors: … instead of …",
            needs ["ooms"], when "the numbers differ", EXACT;
        NotComparable "not_comparable": "the old run has … ranks, the new one … ranks",
            needs ["incomparable"], when "the runs differ in ranks, device, capacity or workload", WORDS;
        NothingDiffers "nothing_differs": "Nothing differs by more than noise.",
            needs ["metrics", "ranks"], when "no figure or diagnosis of the run or of a rank differs, and none was left unjudged", WORDS;
        NothingJudgedDiffers "nothing_judged_differs": "Nothing that the verdict rests on differs by more than noise.",
            needs ["reasons"], when "the verdict has no reason, and a figure of a rank differs, or one was left unjudged", WORDS;
        ExitBecause "exit_because": "exit code 1 because of this: …",
            needs ["exit_code", "reasons"], when "the exit code is 1", WORDS;
        NoData "no_data": "the … summary says NO DATA",
            needs ["diagnosis"], when "a summary has nothing to compare", WORDS;
        TooShort "too_short": "the new run has too few steps to judge creep",
            needs ["diagnosis"], when "and the old one has enough", WORDS;
        NoPeak "no_peak": "the old summary has no peak",
            needs ["peak_allocated_bytes"], when "it has no live memory, either", WORDS;
        MayStillCome "may_still_come"(Steps): "the new run had … steps, the old one …: what grew in the old one may still come in the new one",
            needs ["steps"], when "the old run grew, the new one is shorter by a tenth or more, and something is better because of that", EXACT;
        GrowsLonger "grows_longer"(Steps): "the new run had … steps, the old one …: memory grows as fast in both, and for longer in the new one",
            needs ["steps", "slope_bytes_per_step"], when "both grow, the new one is longer by a tenth or more, the rates are one, and something is worse because of that", EXACT;
        OldTooShort "old_too_short"(Steps): "the new run had … steps, the old one …: the old one is too short to show what grows",
            needs ["steps"], when "the new run grows and is longer, the old one was not judged, and its rate is not known", EXACT;
        UnlikeSteps "unlike_steps"(Steps): "the old run had … steps, the new one …",
            needs ["steps"], when "one has more than twice the other's", EXACT;
        OtherPolicies "other_policies": "one summary is judged by TraceML's rules and the other by stepmem's",
            needs ["diagnosis"], when "it is so", WORDS;
        MeansCompared "means_compared": "TraceML writes means over the steps, so means are compared",
            needs ["peak_allocated_bytes"], when "a summary has no maximum, and both have a mean", WORDS;
        NeitherJudged "neither_judged": "neither run has enough steps to judge creep",
            needs ["diagnosis"], when "it is so", WORDS;
        PeaksUnknown "peaks_unknown": "the … run does not know its peaks, so live memory is compared",
            needs ["allocated_bytes"], when "it is so; without the end where live memory is not known of both", WORDS;
        GoingOn "going_on": "the … run was going on when its summary was written",
            needs ["diagnosis"], when "a rank still pushed then", WORDS;
        LineInBoth "line_in_both": "the line … leaks in both runs, or what … holds grows",
            needs ["notes"], when "snapshots or searches name one line", WORDS;
        LineOther "line_other": "the line … leaks now, and no longer the line …; or what … holds grows",
            needs ["notes"], when "they name two, and the new run is long enough to show the old one", WORDS;
        LineGone "line_gone": "the line … no longer leaks, or what … holds no longer grows",
            needs ["notes"], when "the new run was judged, is long enough to show it, and does not grow", WORDS;
        LineNew "line_new": "the line … leaks in the new run, or what … holds grows",
            needs ["notes"], when "only the new run has one, or is too short to show that of the old one", WORDS;
        MoreRanksDiffer "more_ranks_differ"(Count): "… and … more ranks that differ",
            needs ["ranks"], when "the table does not show all that differ", EXACT;
    }
    Gate {
        GateRun "gate_run": "run …",
            needs ["run"], when "a command had several runs: the one that is meant", WORDS;
        GateFinding "gate_finding": "MEMORY CREEP (critical) on rank …",
            needs ["issues"], when "the worst finding that a condition is about; what it states follows", WORDS;
        GatePeak "gate_peak"(Bytes): "the peak of reserved memory of rank … is …; the limit is …",
            needs ["peak_reserved"], when "the peak of a rank is above the budget", EXACT;
        GateNoSteps "gate_no_steps": "no train step was counted",
            needs ["ranks"], when "no rank took a step, and no process was sampled", WORDS;
        GateFewSteps "gate_few_steps": "too few steps to judge creep",
            needs ["ranks_judged"], when "the condition is about creep, and no rank was judged", WORDS;
        GateNoCapacity "gate_no_capacity": "the capacity is not known, so pressure cannot be judged",
            needs ["pressure_ratio"], when "the condition is about pressure, and it is so of all ranks", WORDS;
        GateNoPeak "gate_no_peak": "the peak of reserved memory of rank … is not known",
            needs ["peak_reserved"], when "the condition is a budget, and no known peak is above it", WORDS;
        GateOtherJob "gate_other_job": "the baseline has a world size of …, this run of …",
            needs ["coverage"], when "the baseline is of another number of ranks or kind of memory", WORDS;
        GateUnread "gate_unread": "… was not read",
            needs [], when "the file of the baseline was not read", WORDS;
        GateNothing "gate_nothing": "nothing was watched",
            needs ["ranks"], when "the command has no run", WORDS;
        GateCondition "gate_condition": "--fail-on …",
            needs [], when "always: the condition that fails, or that growth passes", WORDS;
    }
    Snapshot {
        SiteLeaks "site_leaks"(BytesPerStep): "LEAK … a step, at …",
            needs ["leak"], when "lines kept memory in nearly all of five steps or more", RATE;
        Explained "explained"(Ratio): "the lines below explain …% of it",
            needs ["leak"], when "the same, and the least active memory of a step grows", EXACT;
        MayFill "may_fill"(Steps): "A queue or cache of more than … steps that is not full yet would look the same.",
            needs ["leak"], when "the same", EXACT;
        NoLineGrows "no_line_grows": "No line goes on growing.",
            needs ["leak"], when "six marks of steps or more, and nothing is kept by a line", WORDS;
        MayGrow "may_grow": "It is not known yet whether … will go on growing",
            needs ["leak"], when "the same, and a line may", WORDS;
        CannotBeTold "cannot_be_told": "Cannot be told: …",
            needs ["history"], when "fewer than six marks of steps", WORDS;
        OomCause "oom_cause"(Bytes): "Leak: without the … that … leaked, … would have been free.",
            needs ["oom"], when "an allocation failed: what would have had to be absent", EXACT;
        StepNeeds "step_needs"(Bytes): "Step … needs … at its peak: … do not depend on the batch, … scale with it.",
            needs ["fit"], when "a whole step was recorded with its stacks", EXACT;
        PerSample "per_sample"(Bytes): "With a batch of …: … a sample.",
            needs ["fit"], when "the same, and the batch size is given", EXACT;
        BatchFits "batch_fits"(Count): "In … fit …, if all else stays as it is.",
            needs ["fit"], when "the same, and the capacity is given", EXACT;
        WouldSave "would_save"(Bytes): "… would save … of that peak.",
            needs ["fit", "saved_bytes"], when "the peak without that memory, played again, is lower by as much", EXACT;
        Noted "noted"(Bytes): "(of each kind of note: snapshot-interpretation.md)",
            needs ["notes"], when "the snapshot shows what the note is about", EXACT;
        AdviceSnapshot "advice_snapshot": "Look at the line named under Leak: …",
            needs ["leak", "oom"], when "always", WORDS;
    }
    Snapshots {
        DeviceGrowth "device_growth"(Bytes): "device …: … active, … reserved",
            needs ["growth_bytes", "reserved_growth_bytes"], when "always, of each device", EXACT;
        BlocksChanged "blocks_changed"(Count): "… new blocks, … gone",
            needs ["new_blocks", "gone_blocks"], when "the files are not known to be of two processes", EXACT;
        GrowthPerStep "growth_per_step"(BytesPerStep): "… a step, over … steps",
            needs ["growth_bytes_per_step", "steps_between"], when "it is known how many steps begin between the files", EXACT;
        DiffNoted "diff_noted": "(of each kind of note: snapshot-reference.md)",
            needs ["notes"], when "the comparison shows what the note is about", WORDS;
        BornLeak "born_leak"(Bytes): "LEAK … from state to state, at …",
            needs ["births"], when "lines kept some of what they made between any two of five states or more", EXACT;
        BornStays "born_stays": "Of what these lines made between … states, some of each time is still there.",
            needs ["births"], when "the same", WORDS;
        BornMayFill "born_may_fill"(Count): "A queue or cache of more than … blocks that is not full yet would look the same …",
            needs ["births"], when "the same", EXACT;
        BornNone "born_none": "No line goes on growing, as far as … states show it.",
            needs ["births"], when "five states or more, and no line kept what it made", WORDS;
        BornMay "born_may": "It is not known yet whether … will go on growing; no other line does, as far as … states show it.",
            needs ["births"], when "the same, and a line may", WORDS;
        BornUnknown "born_unknown": "Cannot be told: …",
            needs ["births"], when "too few states, or they are of several processes, out of order, or without stacks", WORDS;
        SameStates "same_states"(Count): "… of the files show the very state of another.",
            needs ["births"], when "it is so", EXACT;
        NoLineChanged "no_line_changed": "no line holds more or less",
            needs ["sites"], when "the files are not equal, and no line differs", WORDS;
        AdviceDiff "advice_diff": "Next: …",
            needs ["sites", "births"], when "a device differs", WORDS;
        RankUnread "rank_unread": "…: …",
            needs ["ranks"], when "the file of a rank could not be read", WORDS;
        RankStandsOut "rank_stands_out": "rank … stands out",
            needs ["worst_rank", "stand_out"], when "three ranks or more were read, and one holds much more than the others in a line", WORDS;
        NoOddRank "no_odd_rank": "No rank stands out in any line.",
            needs ["stand_out"], when "three ranks or more were read, and none does", WORDS;
        OddRankUnknown "odd_rank_unknown": "Cannot be told: three readable ranks are needed to say which is odd …",
            needs ["ranks"], when "less than two ranks were read", WORDS;
        RanksHoldTheSame "ranks_hold_the_same": "The two ranks hold the same: …",
            needs ["differences", "category_differences"], when "two ranks were read, and no line or category differs", WORDS;
        TwoRanksDiffer "two_ranks_differ": "Two ranks show what differs, not which of them is odd …",
            needs ["differences", "category_differences"], when "two ranks were read, and they differ", WORDS;
        NoCategoryChanged "no_category_changed": "no category holds more or less",
            needs ["category_differences"], when "two ranks differ, and in no category", WORDS;
        AdviceRanks "advice_ranks": "Next: `stepmem snapshot show` of that rank's file; …",
            needs ["worst_rank"], when "a rank stands out", WORDS;
    }
    Events {
        TraceHas "trace_has"(Count): "device …: … events, … steps marked by …",
            needs ["events_in_trace"], when "always, of each device", EXACT;
        FreesUnnamed "frees_unnamed": "Frees have no stacks in this file, so what freed a block is inferred …",
            needs ["frees_have_stacks"], when "allocations have stacks, and frees have none", WORDS;
        NoEvents "no_events": "No event matches.",
            needs ["events", "lines_instead"], when "nothing is selected; of a line through which no stack passes with those that could be", WORDS;
        EventsListed "events_listed"(Count): "… events: … allocated, … freed",
            needs ["events"], when "events are listed", EXACT;
        PhasePeak "phase_peak"(Bytes): "… active in … after event …, in step …",
            needs ["peaks"], when "the same, for each phase of those that are selected", EXACT;
        AddressesReused "addresses_reused"(Count): "… addresses used more than once",
            needs ["chains"], when "the tensors of each address are asked for", EXACT;
        AliveAt "alive_at"(Bytes): "alive …: … in … blocks",
            needs ["alive"], when "what is alive at a moment is asked for", EXACT;
    }
    Series {
        SourceRead "source_read"(Count): "… (…): … series",
            needs ["sources"], when "always, of each source; with what was left out", EXACT;
        SeriesTooShort "series_too_short"(Count): "Too short: … series. …",
            needs ["series", "samples"], when "series end before a verdict", EXACT;
        SeriesNoCapacity "series_no_capacity"(Count): "No capacity is known of … series: …",
            needs ["capacity_bytes"], when "it is so", EXACT;
        UnitGuessed "unit_guessed"(Count): "Nothing names the unit of … series: …",
            needs ["is_unit_guessed"], when "figures were taken as bytes because of their size", EXACT;
        ByTime "by_time": "Samples by time cannot show optimizer steps, …",
            needs ["note"], when "always", WORDS;
    }
    Status {
        ProcessMemoryUnknown "process_memory_unknown": "Device memory of a rank's process is unknown: NVML …",
            needs ["process_used_state"], when "NVML does not give it, each reason once", WORDS;
        NoDriver "no_driver": "No NVIDIA driver here: the memory of devices is not read.",
            needs ["gpu"], when "NVML's library is missing", WORDS;
        NvmlSilent "nvml_silent"(Seconds): "NVML does not answer (…); it last did … ago: …",
            needs ["gpu"], when "a call of NVML fails", EXACT;
        DeviceError "device_error": "Device … answers only with an error (…): what it holds is unknown.",
            needs ["gpu"], when "it does, and no finding tells of it", WORDS;
        GoneHolds "gone_holds"(Bytes): "… still holds … for process …, which no longer exists.",
            needs ["devices"], when "a device lists a process that the kernel has not", EXACT;
        NameShared "name_shared"(Count): "Two programs push under the name …; refused lately: …",
            needs ["challengers"], when "processes were refused because of their run's name", EXACT;
        NameTaken "name_taken": "… requested the name …, under which another program pushes.",
            needs ["asked_for"], when "a run has another name than it asked for", WORDS;
        AcknowledgedFor "acknowledged_for"(Seconds): "Acknowledged for … more: …",
            needs ["acks"], when "an operator acknowledged a finding", EXACT;
    }
}

/// Differences of two runs that count.
const CHANGES: &[Claim] = &[
    Claim::IssueNew,
    Claim::IssueGone,
    Claim::IssueChanged,
    Claim::EndChanged,
    Claim::LiveChanged,
    Claim::PeakAllocatedChanged,
    Claim::PeakReservedChanged,
    Claim::HeadroomChanged,
    Claim::HostHeadroomChanged,
    Claim::RateChanged,
    Claim::SkewChanged,
    Claim::LostChanged,
    Claim::OomsChanged,
    Claim::NotComparable,
];

/// Statements that show a line that rises.
const RISING: &[Claim] = &[
    Claim::RatePerStep,
    Claim::RatePerHour,
    Claim::Accelerates,
    Claim::Grows,
    Claim::RisesStraight,
    Claim::RisesOnAverage,
    Claim::RisesUnfound,
    Claim::TimeLeft,
    Claim::LeastTimeLeft,
    Claim::CalmUnjudged,
    Claim::JudgedRanks,
    Claim::OomEnded,
    Claim::OomKilled,
    Claim::Failed,
];

impl Claim {
    /// Returns the statements that must not stand beside it about the same job.
    pub fn excludes(self) -> &'static [Self] {
        match self {
            Self::NothingToDo => RISING,
            Self::NoFinding => &[Self::Raised, Self::NotJudged, Self::RisesUnfound],
            Self::Calm => &[Self::CalmUnjudged, Self::NoSteps],
            Self::LetRun | Self::StopRun => &[Self::Restarts, Self::RestartBuys],
            Self::ChangeRun => {
                &[Self::LetRun, Self::Restarts, Self::RestartBuys, Self::StopRun]
            }
            Self::NothingDiffers | Self::NothingJudgedDiffers | Self::NoData => CHANGES,
            Self::MayStillCome => &[Self::IssueGone, Self::LineGone, Self::LineOther],
            Self::GrowsLonger | Self::OldTooShort => &[Self::IssueNew],
            Self::BornLeak => &[Self::BornNone, Self::BornMay, Self::BornUnknown],
            Self::RankStandsOut => &[Self::NoOddRank, Self::OddRankUnknown],
            Self::RanksHoldTheSame => &[Self::TwoRanksDiffer],
            Self::NothingLeft => &[Self::TimeLeft, Self::LeastTimeLeft],
            _ => &[],
        }
    }
}

/// The claims as a page of documentation.
pub fn document() -> String {
    let mut page = String::from(
        "# What stepmem says\n\nGenerated from `crates/types/src/claims/table.rs`. Each sentence of a finding, of the card of a run and of \
         a command below is made of\nstatements, and each statement is one of these. `--json` has them beside the words, as `statements`: \
         `claim`, `words`, the figure\nas `value` with its `unit` and, where that is known, `lower` and `upper` of its 95 % interval, and \
         as `evidence` what it needs.\nA figure that is not known is absent. How often they are so: [truth.md](truth.md).\n",
    );
    let code = |name: &str| format!("`{name}`");
    let mut group = None;
    for claim in Claim::ALL {
        let row = claim.row();
        if group != Some(row.group) {
            group = Some(row.group);
            let heading = format!("\n## {}\n\n", row.group.heading());
            page.push_str(&heading);
            page.push_str("| claim | words | unit | needs | said when | may be off by |\n|---|---|---|---|---|---|\n");
        }
        let unit = row.unit.map_or_else(|| "–".to_owned(), |unit| code(unit.as_label()));
        let needs: Vec<String> = row.needs.iter().map(|need| code(need)).collect();
        let needs = if needs.is_empty() { "–".to_owned() } else { needs.join(", ") };
        let (name, words, when, within) = (row.name, row.words, row.when, row.within.words());
        let row = format!("| `{name}` | {words} | {unit} | {needs} | {when} | {within} |\n");
        page.push_str(&row);
    }
    let excluded = Claim::ALL.iter().filter(|claim| !claim.excludes().is_empty());
    page.push_str("\n## What never stands together\n\n");
    for claim in excluded {
        let others: Vec<String> =
            claim.excludes().iter().map(|other| code(other.row().name)).collect();
        let row = format!("- `{}`: {}.\n", claim.row().name, others.join(", "));
        page.push_str(&row);
    }
    page
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_row_has_a_name_and_words_of_its_own() {
        let rows = || Claim::ALL.iter().map(|claim| claim.row());
        let names: BTreeSet<&str> = rows().map(|row| row.name).collect();
        assert_eq!(names.len(), Claim::ALL.len());
        assert!(rows().all(|row| !row.words.is_empty() && !row.when.is_empty()));
        for claim in Claim::ALL {
            let json = serde_json::to_value(claim).unwrap();
            assert_eq!(json, claim.row().name);
        }
    }

    #[test]
    fn a_figure_with_a_tolerance_has_a_unit() {
        for row in Claim::ALL.iter().map(|claim| claim.row()) {
            let is_of_figure = row.unit.is_some();
            assert!(!is_of_figure || row.within != Tolerance::Words, "{}", row.name);
        }
    }
}
