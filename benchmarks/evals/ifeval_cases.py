"""Prompts with each of IFEval's instructions, and texts that follow some of them: every text answers every prompt."""

from typing import Any

from benchmarks.evals.cases import Case, plain

REPEAT = "Write about rivers."
INSTRUCTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("keywords:existence", {"keywords": ["river", "sea"]}),
    ("keywords:existence", {"keywords": ["riv"]}),
    ("keywords:frequency", {"keyword": " river ", "frequency": 2, "relation": "at least"}),
    ("keywords:frequency", {"keyword": "river", "frequency": 2, "relation": "less than"}),
    ("keywords:forbidden_words", {"forbidden_words": ["sea", "Ocean"]}),
    ("keywords:letter_frequency", {"letter": "R", "let_frequency": 6, "let_relation": "at least"}),
    ("keywords:letter_frequency", {"letter": "z", "let_frequency": 1, "let_relation": "less than"}),
    ("language:response_language", {"language": "en"}),
    ("language:response_language", {"language": "de"}),
    ("length_constraints:number_sentences", {"num_sentences": 3, "relation": "at least"}),
    ("length_constraints:number_sentences", {"num_sentences": 3, "relation": "less than"}),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}),
    ("length_constraints:number_words", {"num_words": 20, "relation": "at least"}),
    ("length_constraints:number_words", {"num_words": 20, "relation": "less than"}),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Then"},
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 1, "nth_paragraph": 1, "first_word": "the"},
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}),
    ("detectable_content:postscript", {"postscript_marker": "NB"}),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}),
    ("detectable_format:constrained_response", {}),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}),
    ("detectable_format:multiple_sections", {"section_spliter": "Section", "num_sections": 2}),
    ("detectable_format:json_format", {}),
    ("detectable_format:title", {}),
    ("combination:two_responses", {}),
    ("combination:repeat_prompt", {"prompt_to_repeat": REPEAT}),
    ("startend:end_checker", {"end_phrase": "That is all."}),
    ("startend:quotation", {}),
    ("change_case:capital_word_frequency", {"capital_frequency": 2, "capital_relation": "at least"}),
    ("change_case:capital_word_frequency", {"capital_frequency": 2, "capital_relation": "less than"}),
    ("change_case:english_capital", {}),
    ("change_case:english_lowercase", {}),
    ("punctuation:no_comma", {}),
)
LONG = "The river runs through the old town and past the mill where the miller lives with a large family of cats."
GERMAN = "Der Fluss fließt langsam durch die alte Stadt und an der Mühle vorbei, in der niemand mehr wohnt."
TEXTS = (
    *(
        LONG,
        LONG.upper(),
        LONG.lower(),
        f"{LONG} {LONG}",
        GERMAN,
        "",
        "   ",
        "12345 67890",
        "The river. The sea. The END.",
    ),
    *(
        f"{REPEAT}\n\n{LONG}",
        f"{REPEAT.lower()} {LONG}",
        f'"{LONG}"',
        '"',
        '""',
        f"<<Rivers>>\n{LONG}",
        "<<>>",
        "<< >>",
    ),
    *(
        f"{LONG}\n***\n{LONG}",
        f"***{LONG}***",
        f"{LONG}\n***\n***\n{LONG}",
        f"{LONG}******{LONG} Also.",
        "a******a",
        "a******b",
    ),
    *(
        "* one\n* two",
        "- one\n- two\n",
        "* one\n- two\n* three",
        "**bold** and *thin*",
        "*a* *b* ** **",
        "****",
        "*one*\n*two*",
    ),
    *(
        '{"a": 1}',
        '```json\n{"a": 1}\n```',
        "```\n[1, 2]\n```",
        "{a: 1}",
        "```JSON\nnull```",
        "My answer is yes.",
        "My answer is no",
    ),
    *(
        "Section 1\nRivers\nSection 2\nSeas",
        "SECTION 1 a SECTION 2 b",
        "Section1Section2",
        "[name] lives in [place]",
        "[a [b] c]",
    ),
    *(
        f"{LONG}\nP.S. The sea is near.",
        "P.P.S. more",
        "p. p. s more",
        "p.s. more",
        "nb: this",
        f"{LONG}\n\nThen it ends.",
        "Then",
    ),
    *(
        f'{LONG}\n\n"Then, it ends."',
        f"{LONG}\n\n\n\nThen it ends.",
        f"{LONG} That is all.",
        'He said "That is all."',
        "That is all",
    ),
    *(
        "NASA and ESA met. U.S. troops left at 5 P.M. They won.",
        "I AM HERE",
        "A B C D",
        "Dr. Smith went to the U.S. He left.",
    ),
    *(
        "Sure! Here it is:\n" + LONG.upper(),
        LONG.upper() + "\nHope this helps",
        "*" + LONG.lower() + "*",
        "river river sea",
    ),
    *(
        "Rivers, seas and oceans: the sea",
        "zebra zoo",
        "the river ... the sea? Yes! No.",
        "Sure:\n* one\n* two\nDone",
        LONG * 3,
    ),
)


def ifeval_cases(quick: bool) -> list[Case]:
    """One prompt for each instruction, and some for two at once."""
    single = [[one] for one in INSTRUCTIONS]
    pairs = [[INSTRUCTIONS[place], INSTRUCTIONS[(place * 7 + 3) % len(INSTRUCTIONS)]] for place in range(0, 34, 3)]
    told = single[::5] if quick else [*single, *pairs]
    texts = TEXTS[:8] if quick else TEXTS
    return [
        Case(
            {
                "key": number,
                "prompt": f"{REPEAT} ({number})",
                "instruction_id_list": [name for name, _ in instructions],
                "kwargs": [dict(said) for _, said in instructions],
            },
            plain(*texts),
        )
        for number, instructions in enumerate(told)
    ]
