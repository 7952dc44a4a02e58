"""Code that runs on a device: live runs, calibration of profiles, and validation of both; needs torch."""
