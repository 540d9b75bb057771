"""The time of every step of a job, hours or weeks of them: recorded by `Doctor`, read and summarised here."""
