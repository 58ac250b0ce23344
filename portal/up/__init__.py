"""The one command: every server and process of Headrace on one machine.

The supervisor imports no Django: it starts in a tenth of a second and outlives what it starts.
"""


class Refused(Exception):
    """`make up` cannot go on; the message is the one sentence that says why and what to do."""
