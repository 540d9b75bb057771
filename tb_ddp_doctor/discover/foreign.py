"""What other recorders leave behind, and how it becomes something that can be diagnosed."""

from __future__ import annotations

import re
import zlib

from tb_ddp_doctor.discover.head import UNITRACE_EVENT
from tb_ddp_doctor.discover.names import trace_name
from tb_ddp_doctor.findings import FileWarning
from tb_ddp_doctor.storage.paths import FilePath
from tb_ddp_doctor.storage.time_limit import beginning

_HEAD_BYTES = 1 << 14
_EXPORT = "nsys export --type sqlite --include-json true"
#: Of an SQLite file that is nothing else.
NO_RECORDING = (
    "This is an SQLite file, but no export of Nsight Systems with kernels (`" + _EXPORT + " REPORT.nsys-rep`)."
)
_EXPORT_AGAIN = "export the report again with `" + _EXPORT + " REPORT.nsys-rep`."
_OF_INTEL = (
    "This is a trace of Intel's unitrace or onetrace, which Perfetto (ui.perfetto.dev) shows: it has no operators and "
    "no steps. The doctor reads what torch.profiler writes of Intel's GPUs (ProfilerActivity.XPU)."
)
#: MindStudio's trace_view.json and msprof's are lists of events, those of the device without any category of Kineto's.
_OF_ASCEND = (
    "This is a trace of Ascend NPUs, as torch_npu and MindStudio write it: MindStudio Insight shows it. The doctor "
    "reads what torch.profiler writes of GPUs and CPUs."
)
_OF_XLA = (
    "This is a profile of JAX, TensorFlow or PyTorch/XLA, which xprof shows (`pip install xprof`, `xprof --logdir "
    "DIR`). The doctor reads traces of torch.profiler and Nsight Systems."
)
_OF_ROCPROF = (
    "This is of rocprof: the doctor reads what torch.profiler writes on AMD GPUs (export_chrome_trace); of rocprofv3's "
    "formats, `--output-format pftrace` opens in Perfetto."
)
#: What Omnitrace and its successor write with Perfetto's own library.
_OF_OMNITRACE = (
    "This is a trace of Omnitrace or ROCm Systems Profiler for Perfetto, which shows it: the doctor reads what "
    "torch.profiler writes on AMD GPUs (export_chrome_trace)."
)
#: By the end of the name.
_BY_NAME = (
    (
        re.compile(r"(?:^|/)(?:CUPTI_ACTIVITY_KIND_|NVTX_|TARGET_INFO_)\w+\.(?:arrow|parquet)$"),
        "This is an export of Nsight Systems to Arrow or Parquet: " + _EXPORT_AGAIN,
    ),
    (
        re.compile(r"\.hatchet$"),
        "This is a profile of Triton's Proton: `proton-viewer -m time/ms {name}` shows its sums of kernels, without "
        "times of their own. For ranks and steps, record with torch.profiler or nsys.",
    ),
    (
        re.compile(r"^(?:onetrace|ze_tracer|cl_tracer)\.[\w.]*json$"),
        _OF_INTEL,
    ),
    (re.compile(r"^perfetto-trace[-\w]*\.proto$"), _OF_OMNITRACE),
    (
        re.compile(r"\.rpd$"),
        "This is a database of rocmProfileData: `rpd2tracing.py {name} trace.json` makes a trace for Perfetto; the "
        "doctor reads what torch.profiler writes on AMD GPUs (export_chrome_trace).",
    ),
    (
        re.compile(r"\.(?:vtune|hltv|ntff)$"),
        "This is a profile of VTune, Intel Gaudi or AWS Neuron, which their own tools show: the doctor reads what "
        "torch.profiler and Nsight Systems write.",
    ),
    (
        re.compile(r"\.et$"),
        "This is a Chakra execution trace, for simulators: the doctor reads the traces of torch.profiler that it was "
        "linked from.",
    ),
    (
        re.compile(r"\.(?:nsys-rep|qdrep)$"),
        "This is a report of Nsight Systems: export it with `" + _EXPORT + " {name}`, and diagnose the .sqlite file.",
    ),
    (
        re.compile(r"\.qdstrm$"),
        "This is an unfinished report of Nsight Systems: import it with `QdstrmImporter -i {name}`, then `"
        + _EXPORT
        + "` makes the .sqlite file that can be diagnosed.",
    ),
    (re.compile(r"\.xplane\.pb$"), _OF_XLA),
    (
        re.compile(r"\.(?:ncu-rep|nvvp|nvprof)$"),
        "This is a profile of single kernels or of nvprof, without what ranks do: record with torch.profiler or nsys.",
    ),
    (re.compile(r"(?:^|_)(?:kernel|hip_api|hsa_api|memory_copy)_trace\.csv$|\.otf2$"), _OF_ROCPROF),
    (
        re.compile(
            r"(?:^|[^a-z])(?:(?:trace_view|msprof_\w+)\.json(?:\.gz)?|ascend_(?:pytorch|mindspore)_profiler\w*\.db)$"
        ),
        _OF_ASCEND,
    ),
)
_PACKETS = re.compile(r"\.(?:pftrace|perfetto-trace)(?:\.gz)?$")
#: Names whose content decides, and what stands in their first bytes.
_BY_HEAD = (
    (
        _PACKETS,
        re.compile(rb"kernel_dispatch|hip_api|hsa_api"),
        "This is a trace of rocprofv3 for Perfetto, which shows it. It has no operators and no steps, and nothing "
        "makes a trace of torch.profiler of it: the doctor reads what torch.profiler writes on AMD GPUs "
        "(export_chrome_trace).",
    ),
    (
        _PACKETS,
        re.compile(rb""),
        "This is a trace in Perfetto's format without events of torch.profiler: the doctor reads those that torch's "
        'export_chrome_trace("x.pftrace") writes.',
    ),
    (
        re.compile(r"\.(?:db|sqlite3?|rpd)$"),
        re.compile(rb"rocpd_"),
        "This is a rocpd database of rocprofv3: `rocpd convert -i {name} --output-format pftrace` makes a trace for "
        "Perfetto; the doctor reads what torch.profiler writes on AMD GPUs.",
    ),
    (
        re.compile(r"-pid\d{1,10}\.(?:log|jsonl)$"),
        re.compile(rb'"(?:coll|p2p)_perf"|"inspector_output_format_version"'),
        "This is a log of NCCL's Inspector, of hours without traces: `ddp-doctor history FOLDER` shows its calls.",
    ),
    (
        re.compile(r"\.json$"),
        re.compile(rb"rocprofiler-sdk|CPU HIP API|CPU HSA API|rocprofv?\d?"),
        "This is the JSON of rocprof: the doctor reads what torch.profiler writes on AMD GPUs "
        "(export_chrome_trace); rocprof's own file opens in Perfetto.",
    ),
    (
        re.compile(r"\.jsonl?$"),
        re.compile(
            rb'"(?:CudaEvent|NvtxEvent|TraceProcessEvent|globalTid|GlobalTid|globalPid)"|\{"data":\["\[Unknown\]"'
        ),
        "This is the JSON export of Nsight Systems: " + _EXPORT_AGAIN,
    ),
    (
        re.compile(r"\.(?:h5|hdf5?)$"),
        re.compile(rb"CUPTI_ACTIVITY_KIND|TARGET_INFO_|StringIds|NVTX_EVENTS"),
        "This is an export of Nsight Systems to HDF5: " + _EXPORT_AGAIN,
    ),
    (
        re.compile(r"\.json$"),
        UNITRACE_EVENT,
        _OF_INTEL,
    ),
    (
        re.compile(r"\.json(?:\.gz)?$"),
        re.compile(rb"\[pytorch\|profiler\|execution_(?:trace|graph)"),
        "This is an execution trace of torch (ExecutionTraceObserver): operators and their inputs, without times. "
        "Diagnose the trace that torch.profiler wrote beside it.",
    ),
    (
        re.compile(r"\.json(?:\.gz)?$"),
        re.compile(rb'"cat"\s*:\s*"FEE"|"viztracer_metadata"'),
        "This is a trace of VizTracer, of Python functions alone, without operators and kernels: record with "
        "torch.profiler.",
    ),
    (
        re.compile(r"\.json(?:\.gz)?$"),
        re.compile(rb'"/(?:device:[A-Z]{3,8}:\d|host:CPU|job:\w{1,40}/replica:\d)'),
        _OF_XLA,
    ),
    (
        re.compile(r"\.json(?:\.gz)?$"),
        re.compile(rb'"(?:Ascend Hardware|async_npu|CANN)"'),
        _OF_ASCEND,
    ),
    (
        re.compile(r"\.(?:db|sqlite3?)$"),
        re.compile(rb"\ASQLite format 3\0"),
        NO_RECORDING,
    ),
)


def may_be(name: str) -> bool:
    """Whether a file may be another recorder's by its name."""
    return any(ending.search(name) for ending, _ in _BY_NAME) or any(ending.search(name) for ending, *_ in _BY_HEAD)


def explained(path: FilePath) -> FileWarning | None:
    """What another recorder's file is, and what to do with it; None for any other file."""
    name = trace_name(path.name)
    for ending, message in _BY_NAME:
        if ending.search(name):
            return FileWarning(str(path), message.format(name=path.name))
    candidates = [(head, message) for ending, head, message in _BY_HEAD if ending.search(name)]
    if not candidates:
        return None
    try:
        first = beginning(path, _HEAD_BYTES)
        if first.startswith(b"\x1f\x8b"):
            first = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16).decompress(first, _HEAD_BYTES)
    except (OSError, zlib.error):
        return None
    return next(
        (FileWarning(str(path), message.format(name=path.name)) for head, message in candidates if head.search(first)),
        None,
    )
