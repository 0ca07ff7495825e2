"""Lists the requirements of `podrace.evolution.v1`."""

from podrace.conformance.findings import Requirement, by_name
from podrace.conformance.requirements.errors import ERROR_DETAILS

_SERVICE = "EvolutionService"
_HYPERPARAMETERS = "FreshProposal.hyperparameters"

REQUIREMENTS = by_name(
    [
        Requirement(
            "deadline",
            "Deadline: `evolution.answer_duration`, 5 s by default.",
            _SERVICE,
            "answer in time, or give the tournament a longer `evolution.answer_duration`",
        ),
        Requirement(
            "implements",
            "A plugin that is named for one of the two only may answer the other method with UNIMPLEMENTED.",
            _SERVICE,
            "implement ProposeAgent, JudgeCandidate or both",
        ),
        Requirement(
            "answers",
            "An error status, no answer before the deadline, and an answer that violates the rules at its fields"
            " have the same effect: the built-in component decides this one step",
            _SERVICE,
            "answer every valid request, whatever the size of the board",
        ),
        Requirement(
            "proposal-set",
            "How the agent starts. One must be set.",
            "ProposeAgentResponse.proposal",
            "set `fresh` or `child`; an empty `fresh` lets the leaderboard draw everything",
        ),
        Requirement(
            "fresh-algorithm",
            "Its algorithm, one of `spec.algorithms`. Empty: the algorithm whose turn `number` is by the ratios.",
            "FreshProposal.algorithm",
            "name a key of `spec.algorithms`, or none",
        ),
        Requirement(
            "known-hyperparameters",
            "Each must exist in the algorithm and have its type.",
            _HYPERPARAMETERS,
            "name only hyperparameters of the algorithm, with values of the type that the specification has for them",
        ),
        Requirement(
            "within-range",
            "A searched one must lie in the range or among the choices of the specification, any other in what the"
            " algorithm allows",
            _HYPERPARAMETERS,
            "limit each value to `low` and `high`, or to `choices`, of the specification in the request",
        ),
        Requirement(
            "parent",
            "The parent: the id of one of `candidates`.",
            "ChildProposal.candidate_id",
            "choose a parent from `candidates` of the same request",
        ),
        Requirement(
            "child-algorithm",
            "Its algorithm, which must be the candidate's. Empty: the candidate's.",
            "ChildProposal.algorithm",
            "leave the algorithm of a child empty",
        ),
        Requirement(
            "structure",
            "Structural ones, which shape networks and memories (`hidden_sizes`, for example), must be the parent's,"
            " because its checkpoint files would not fit otherwise.",
            "ChildProposal.hyperparameters",
            "leave structural hyperparameters of a child out",
        ),
        Requirement(
            "opinion",
            "What to do. Must be one of these; a value that the leaderboard does not know counts as a failure.",
            "JudgeCandidateResponse.opinion",
            "answer OPINION_ACCEPT, OPINION_REFUSE or OPINION_BY_RANK",
        ),
        Requirement(
            "rank-score",
            "Number that the board ranks the candidate by, higher before lower; must be finite.",
            "JudgeCandidateResponse.rank_score",
            "leave `rank_score` unset where you have no finite number",
        ),
        Requirement("size", "At most 64 KiB.", "ProposeAgentResponse and JudgeCandidateResponse", "shorten the reason"),
        Requirement(
            "reason",
            "Why, as one human-readable line.",
            "ProposeAgentResponse.reason and JudgeCandidateResponse.reason",
            "say why in one line of at most 300 characters",
            advice=True,
        ),
        Requirement(
            "repeats",
            "If its answers depend on nothing but the request, a `synchronous` tournament stays reproducible.",
            _SERVICE,
            "draw random numbers from `seed`, and keep no state between calls",
            advice=True,
        ),
        ERROR_DETAILS,
    ]
)
