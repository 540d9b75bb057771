"""The account of a step: what each finding saves, how sure that is, and the verdict that follows."""
