"""An embedded SGLang-like server: SGLang's scheduler over a step-time model, in real time, over HTTP.

    steptime    how long a step takes
    sequence    one request as the scheduler sees it
    radix       the prefix cache: a radix tree over token ids
    scheduler   which step comes next: the queue, the batch and the token pool; pure, it is told the time
    engine      steps the scheduler in real time and hands out tokens
    server      the HTTP face, in the shapes of SGLang 0.5

It imports nothing of the measuring side: they meet over HTTP. Its figures are simulated and say so.
"""
