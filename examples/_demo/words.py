"""Words for the generated data set: six parts of a scene, each with several meanings, each meaning in several wordings."""

from __future__ import annotations

__all__ = ["ALL_MEANINGS", "PARTS", "TRAIN_MEANINGS", "Meanings"]

Meanings = list[tuple[str, ...]]

# Each line is one meaning; bars separate its wordings. The last third of every list is held out
# from training.
_WHO = """
    the doctor|the physician|the medic
    the child|the kid|the youngster
    the policeman|the cop|the law enforcement officer
    the teacher|the instructor|the schoolmaster
    the thief|the robber|the burglar
    the farmer|the grower|the man who works the land
    the lawyer|the attorney|the legal adviser
    the actress|the movie star|the woman who plays in films
    the soldier|the trooper|the man in the army
    the tourist|the traveller|the holidaymaker
    the scientist|the researcher|the laboratory worker
    the chef|the cook|the man in charge of the kitchen
"""
_DID = """
    bought|purchased|paid for; buy|purchase|pay for
    sold|found a buyer for|traded away; sell|find a buyer for|trade away
    repaired|fixed|mended; repair|fix|mend
    destroyed|wrecked|smashed up; destroy|wreck|smash up
    lost|mislaid|could no longer find; lose|mislay|miss
    photographed|took pictures of|shot photos of; photograph|take pictures of|shoot photos of
    hid|concealed|put out of sight; hide|conceal|put out of sight
    washed|cleaned|scrubbed; wash|clean|scrub
    discovered|found|came across; discover|find|come across
    threw away|discarded|got rid of; throw away|discard|get rid of
    lent out|handed out on loan|let others use; lend out|hand out on loan|let others use
    drew|sketched|made drawings of; draw|sketch|make drawings of
"""
_MANY = """
    two|a couple of|a pair of
    several|some|a handful of
    dozens of|lots of|a great many
    a hundred|one hundred|exactly 100
    all the|every one of the|the whole lot of
    half of the|fifty percent of the|one in two of the
"""
_WHAT = """
    cars|automobiles|motor vehicles
    books|novels|volumes to read
    shoes|boots|pieces of footwear
    bicycles|bikes|cycles
    computers|laptops|PCs
    paintings|canvases|works of art
    coats|jackets|pieces of outerwear
    knives|blades|sharp kitchen tools
    toys|playthings|things for children to play with
    lamps|lights|things that light up a room
    couches|sofas|settees
    pebbles|stones|small rocks
    jewels|gems|gold rings and necklaces
    phones|mobiles|telephones
    sweets|candies|sugary treats
"""
_WHERE = """
    in the forest|in the woods|among the trees
    at school|in the classroom|in a place of learning
    at the hospital|in the clinic|in the ward
    by the sea|on the beach|at the shore
    in the shop|at the store|at a retailer's
    in the street|on the road|on the pavement
    at the airport|in the terminal|where the planes land
    in the church|in the chapel|in a house of prayer
    on the farm|in the barn|out in the fields
    in prison|in jail|behind bars
    in the garden|in the back yard|on the lawn
    in the mountains|up in the hills|on the slopes
"""
_WHEN = """
    at dawn|at sunrise|at first light
    in the evening|after sunset|at dusk
    yesterday|the day before today|one day ago
    last year|a year ago|twelve months ago
    in winter|in the cold season|when it snowed
    on Sunday|at the weekend|on the day of rest
    during the war|in wartime|while the fighting went on
    during lunch|at noon|in the midday break
    in summer|in the hot season|on a warm July day
"""


def _read(text: str) -> Meanings:
    return [tuple(line.split("|")) for line in map(str.strip, text.strip().splitlines())]


def _with_negations(text: str) -> Meanings:
    """Verb i becomes meaning 2i, and its negation meaning 2i + 1."""
    meanings: Meanings = []
    for line in text.strip().splitlines():
        past, base = (tuple(half.strip().split("|")) for half in line.split(";"))
        meanings += [past, tuple(f"{no} {verb}" for no, verb in zip(("did not", "didn't", "failed to"), base, strict=True))]
    return meanings


PARTS: dict[str, Meanings] = {
    "who": _read(_WHO),
    "did": _with_negations(_DID),
    "many": _read(_MANY),
    "what": _read(_WHAT),
    "where": _read(_WHERE),
    "when": _read(_WHEN),
}
TRAIN_MEANINGS = {part: len(meanings) * 2 // 3 for part, meanings in PARTS.items()}
ALL_MEANINGS = {part: len(meanings) for part, meanings in PARTS.items()}
