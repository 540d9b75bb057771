"""Examples that `ddp-doctor COMMAND --help` ends with, by command: a line each, and what it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

EXAMPLES: Mapping[str, Sequence[tuple[str, str]]] = {
    "diagnose": (
        ("ddp-doctor diagnose logs", "every run, in a few lines each"),
        ("ddp-doctor diagnose logs --last -v", "all of the last run"),
        ("ddp-doctor diagnose logs --html report.html", "the tab as one file, to mail or to keep"),
        ("ddp-doctor diagnose logs --fail-on major", "for CI: exit with 1 for a serious finding"),
        ("ddp-doctor diagnose logs --gpu-hour 2.50 --currency EUR", "what each finding costs a day"),
    ),
    "whatif": (
        ("ddp-doctor whatif logs", "each finding fixed alone, then all"),
        ("ddp-doctor whatif logs --without straggler,no-overlap", "these two fixed together"),
    ),
    "plan": (
        ("ddp-doctor plan logs", "an overview"),
        ("ddp-doctor plan logs --ranks 8,16,32", "more ranks"),
        ("ddp-doctor plan logs --bucket-mb 5,25,100 --dtype bf16", "other buckets, with smaller gradients"),
    ),
    "compare": (
        ("ddp-doctor compare before after", "what differs, and whether it is more than noise"),
        ("ddp-doctor compare before after --fail-on-regression 5", "for CI: exit with 1 for a step 5 % longer"),
    ),
    "dump": (("ddp-doctor dump logs/my_job", "which rank never came"),),
    "history": (
        ("ddp-doctor history logs/my_job", "what changed, when and on which rank"),
        ("ddp-doctor history logs/my_job --since 20000 --fail-on 5", "for an alarm: since that step"),
    ),
    "explain": (
        ("ddp-doctor explain busbw", "a term"),
        ("ddp-doctor explain straggler", "a rule, with its thresholds"),
    ),
    "slice": (("ddp-doctor slice logs --last --finding 1 -o finding.pftrace", "for Perfetto"),),
    "merge": (("ddp-doctor merge logs --last -o job.pftrace", "all ranks in one file for Perfetto"),),
    "digest": (("ddp-doctor digest logs -o digests", "on each node, before the rsync"),),
    "capture": (
        ("ddp-doctor capture logs/my_job", "a capture of the job that trains now"),
        ("ddp-doctor capture logs/my_job --steps 5 --ranks 0,5-7 --stacks", "of some ranks, with Python stacks"),
    ),
    "check": (
        ("ddp-doctor check --ranks 8 -o logs/my_job", "before a job on the 8 GPUs of this machine"),
        ("ddp-doctor check --ranks 8 --fail-on 10", "for an alarm: exit with 1 for a rank 10 % below the median"),
    ),
    "cache": (("ddp-doctor cache --clear", "remove what is kept"),),
    "mcp": (
        ("ddp-doctor mcp logs", "for an agent that starts it"),
        ("ddp-doctor mcp logs --http 8765", "for agents of this machine, at http://127.0.0.1:8765/mcp"),
    ),
    "demo": (("ddp-doctor demo", "the tab on two small jobs with a fault each"),),
    "completion": (
        ("ddp-doctor completion bash > ~/.local/share/bash-completion/completions/ddp-doctor", "for bash"),
        ("ddp-doctor completion zsh > ~/.zfunc/_ddp-doctor", "for zsh, with ~/.zfunc in fpath"),
    ),
}


def epilog(command: str) -> str:
    """The examples of a command, as its help ends with them."""
    return "examples:\n" + "\n".join(f"  {line}\n      {what}" for line, what in EXAMPLES[command])
