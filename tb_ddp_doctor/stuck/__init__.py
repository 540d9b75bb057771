"""Why a job is stuck: from the dumps of all ranks to the ranks at the root of all waiting."""
