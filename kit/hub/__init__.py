"""Transport between this machine and the Hugging Face Hub: repository names, downloads, retries and uploads.

huggingface_hub does the transfers. kit adds what it leaves out: filters that keep code and pickles away, checksums of
what arrived, retries that end in one readable message, and a commit that is never made twice.
"""
