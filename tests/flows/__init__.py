"""Whole paths through all rooms, and one place for each fault that must do no harm.

Each fault gets the right answer (4xx with a code and a sentence; or a state with a reason),
nothing is lost, nothing runs twice, and no charge is wrong:

| fault | file | test |
|---|---|---|
| a malformed body | `test_bad_input` | `TestAMalformedBody` |
| an unknown field | `test_bad_input` | `TestAnUnknownField` |
| foreign ids | `test_bad_input` | `TestAForeignId` |
| a token of another team | `test_bad_input` | `TestATokenOfAnotherTeam` |
| a node token of another node | `test_the_nodes_door` | `TestANodeTokenOfAnotherNode` |
| a replayed join token | `test_the_nodes_door` | `TestAReplayedJoinToken` |
| an image that does not exist | `test_faults_on_nodes` | `TestAnImageThatDoesNotExist` |
| a container that exits at once | `test_faults_on_nodes` | `TestAContainerThatExitsAtOnce` |
| a killed worker, beat, agent or web process | `test_killed_processes` | `TestAKilledProcess` |
| a web process killed before it keeps its answer | `test_killed_processes` | `TestALostAnswer` |
| an emptied Redis | `test_killed_processes` | `TestAnEmptiedRedis` |

Those of `test_killed_processes` run with `pytest -m services`, over processes of their own, at
every step that `steps` names.
"""
