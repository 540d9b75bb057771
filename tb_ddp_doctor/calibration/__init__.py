#: Where `ddp-doctor check -o` writes it, and the doctor looks for it.
CALIBRATION_NAME = "calibration.json"
