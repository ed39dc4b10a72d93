"""Publishing runs, adapters and data on the Hub: the exact folder to upload, the proof that it works there, the upload.

A push ends with a commit only if a process without kit has loaded the folder and computed what the run's model does.
"""
