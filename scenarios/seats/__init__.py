"""Scripted seats: the reference, and one for each way of doing the job badly."""
