"""What runs on a device: live runs, the calibration of a profile, and the validation of both. Needs torch."""
