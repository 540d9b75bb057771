"""What can be known of a job, on demand."""

from tb_ddp_doctor.facts import arrivals, compute, evidence_locator, expected, frame, host, memory, whatif
from tb_ddp_doctor.facts.facts import Fact

#: Every fact that rules ask for, by the name of their parameter.
BY_NAME: dict[str, Fact] = {
    **frame.BY_NAME,
    **arrivals.BY_NAME,
    **expected.BY_NAME,
    **compute.BY_NAME,
    **host.BY_NAME,
    **memory.BY_NAME,
    **evidence_locator.BY_NAME,
    **whatif.BY_NAME,
}
