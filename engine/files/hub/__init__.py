"""Checkpoints on the Hugging Face Hub, read and converted as they come.

`huggingface_hub` says where the Hub is, who asks (the token), through which proxy, and where its cache lies. Everything
that a large transfer needs beyond it is done here: files go on in mid-file after a kill, every byte is checked against
the hash that the Hub publishes, a file that arrives damaged is fetched again, and files are given up as soon as they
are converted.
"""
