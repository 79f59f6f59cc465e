"""The vocabulary of the tasks: word lists, and invented words made of syllables."""

from __future__ import annotations

from random import Random


def words(text: str) -> tuple[str, ...]:
    """The words of a text in order."""
    return tuple(text.split())


NAMES = words(
    """
    Anna Ben Clara David Emma Felix Grace Henry Ida Jonas Karin Leo Maria Nora Oscar Paula Ravi Sofia Tom Uma Victor Wanda
    Yara Zoe Adam Bella Carlos Diana Erik Fatima George Hanna Igor Julia Kofi Lena Marco Nina Omar Petra Rosa Simon Tara Viola
    Walter Yusuf Alice Boris Chen Dora Elias Fiona Gustav Hugo Irene Jack Kira Lucas Mona Noah Olga Peter Ruth Sam Tina Vera
    Will Amir Berta Cyril Daria Ethan Frida Gina Hassan Ines Jorge Kate Liam Mia Nils Otto Priya Rita Stefan Theo Iris Mark
    Lucy Paul Sara Anton Eva Max Lisa Daniel Laura Robert Jane Ali Mei Ken Aiko Luca Greta Ivan Milan Selma Edgar
    """
)
CITIES = words(
    """
    Oslo Paris Rome Berlin Madrid Vienna Lisbon London Dublin Athens Cairo Lima Quito Tokyo Delhi Accra Nairobi Boston Denver
    Toronto Sydney Zurich Geneva Prague Warsaw Riga Helsinki Stockholm Hamburg Munich Milan Naples Porto Seville Lyon Nice
    Brussels Bergen Krakow Tunis Dakar Mumbai Seoul Hanoi Manila Austin Chicago Dallas Havana Bogota
    """
)
THINGS = words(
    """
    apple bag ball basket bell bird boat book bottle box bread bridge brush bucket cake camera candle car castle cat chair
    cheese clock cloud coat coin cup desk dog door drum eagle egg engine fish flag flower forest fork fox garden gate glass
    glove goat hammer hat hill horse house island jacket jar juice kettle key kite knife ladder lake lamp leaf lemon letter
    lion map mirror moon mountain mouse nail needle nest ocean onion orange owl paint paper path pear pen pencil phone piano
    pillow plate plum pocket pond potato queen quilt rabbit radio rain ring river road rocket roof rope rose salt sand scarf
    ship shirt shoe silver snow soap sofa spoon star stone storm sugar sun table tent tiger tomato tower train tree umbrella
    valley vase village violin wall watch water wheel whale window wolf wood yard zebra
    """
)
COLOURS = words("red blue green yellow black white brown pink purple grey orange silver golden")
ADJECTIVES = words(
    """
    big small old new long short round flat heavy light warm cold dry wet soft hard clean dark bright quiet loud fast slow
    strange simple broken empty full deep high
    """
)
GOOD = words(
    """
    good great excellent wonderful lovely fantastic delicious friendly helpful beautiful perfect amazing pleasant superb
    charming brilliant comfortable clean delightful fun
    """
)
BAD = words(
    """
    bad terrible awful horrible boring rude dirty ugly disgusting disappointing dreadful unpleasant poor useless broken noisy
    cold annoying nasty miserable
    """
)
DAYS = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = words("January February March April May June July August September October November December")
JOBS = words(
    """
    doctor teacher baker pilot farmer singer nurse painter lawyer driver cook writer gardener dentist builder judge
    """
)
PETS = words("cat dog horse rabbit parrot hamster turtle goat fish mouse")
FOODS = words("soup pizza rice pasta bread salad cheese fish cake curry beans noodles")
PLACES = words("kitchen garden library station museum school park office market hotel harbour castle cellar attic")

_HEADS = words("b br c d dr f g gr h j k l m n p pl r s st t tr v w z")
_HEARTS = words("a e i o u")
_TAILS = ("", "", "l", "n", "r", "s", "m", "x")


def invent_word(r: Random) -> str:
    """An invented lower-case word of two or three syllables."""
    n = r.choice((2, 2, 3))
    return "".join(r.choice(_HEADS) + r.choice(_HEARTS) + (r.choice(_TAILS) if i == n - 1 else "") for i in range(n))


def name(r: Random) -> str:
    """A first name. One in eight is invented."""
    return invent_word(r).capitalize() if r.random() < 0.125 else r.choice(NAMES)


def city(r: Random) -> str:
    """A city. One in ten is invented."""
    return invent_word(r).capitalize() if r.random() < 0.1 else r.choice(CITIES)


def join_words(words: list[str] | tuple[str, ...], last: str = "and") -> str:
    """The words as an enumeration: "a", "a and b", "a, b and c"."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


def article(word: str) -> str:
    """The word with a or an before it."""
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"
