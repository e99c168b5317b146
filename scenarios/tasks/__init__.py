"""Tasks whose truth is a program, at the scale of a small base: rows to train on, and rows to be judged by."""
