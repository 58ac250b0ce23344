"""Everything that can be done to an instance; each function is one transaction.

`admission` holds what lets an instance into the queue, `ending` what takes it out of use, and
`reports` what the scheduler tells of it.
"""
