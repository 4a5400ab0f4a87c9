// Drives RocketMQ's Node.js client for gRPC: the actions and options of drivers/grpc_client.py. It speaks plain text, as by default.
'use strict';

const fs = require('node:fs');
const {
  ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer,
} = require('rocketmq-client-nodejs');
// The package does not export the numbers that its own functions take.
const { FilterType, TransactionResolution } =
  require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const KINDS = 3;
const LIMIT_MS = 60_000;
const [ action, ...pairs ] = process.argv.slice(2);
const options = Object.fromEntries(pairs.map(pair => pair.split(/=(.*)/s)));
const out = fs.openSync(options.out, 'w');

const write = fields => fs.writeSync(out, `${JSON.stringify(fields)}\n`);
const sleep = ms => new Promise(resolve => setTimeout(resolve, ms));
const number = (name, otherwise) => Number(options[name] ?? otherwise);
const logger = Object.fromEntries([ 'debug', 'info', 'warn', 'error' ].map(level => [
  level, (...said) => level !== 'debug' && console.log(level, ...said),
]));

function configuration() {
  const account = { accessKey: options.accessKey, accessSecret: options.secretKey };
  return { endpoints: options.endpoint, logger, ...(options.accessKey && { sessionCredentials: account }) };
}

function consuming() {
  const expression = options.sql === undefined
    ? new FilterExpression(options.filter ?? '*')
    : new FilterExpression(options.sql, FilterType.SQL);
  return {
    ...configuration(), consumerGroup: options.group, subscriptions: new Map([[ options.topic, expression ]]),
  };
}

function messageOf(n) {
  return {
    topic: options.topic, body: Buffer.from(`${n}`), keys: [ `key${n}` ], properties: new Map([[ 'number', `${n}` ]]),
    tag: options.tag,
    ...(options.kind === 'fifo' && { messageGroup: `group${n % KINDS}` }),
    ...(options.kind === 'delay' && { delay: number('delayMs') }),
  };
}

function seen(event, message) {
  return {
    event, body: message.body.toString(), id: message.messageId, topic: message.topic, tag: message.tag ?? null,
    keys: [ ...message.keys ].sort(), properties: Object.fromEntries(message.properties),
    group: message.messageGroup ?? null, attempt: message.deliveryAttempt,
  };
}

async function sendOne(producer, n) {
  for (let attempt = 0; attempt < number('tries', 20); attempt++) {
    try {
      const receipt = await producer.send(messageOf(n));
      write({ event: 'sent', body: `${n}`, id: receipt.messageId, offset: receipt.offset });
      return receipt;
    } catch (error) {
      write({ event: 'failed', body: `${n}`, attempt, error: String(error) });
      await sleep(200);
    }
  }
}

async function send() {
  const producer = new Producer({ ...configuration(), topic: options.topic });
  await producer.startup();
  let receipt;
  for (let n = 0; n < number('count'); n++) {
    receipt = await sendOne(producer, n);
    await sleep(number('pauseMs', 0));
  }
  if (options.recall) {
    write({ event: 'recalled', id: (await producer.recallMessage(options.topic, receipt.recallHandle)).messageId });
  }
  await producer.shutdown();
}

// With distinct, a message that comes again does not count.
function counter() {
  const taken = new Set();
  let left = number('count');
  return {
    isDone: () => left <= 0,
    take(message) {
      const body = message.body.toString();
      if (!options.distinct || !taken.has(body)) left--;
      taken.add(body);
    },
  };
}

async function awaited(file) {
  for (const end = Date.now() + LIMIT_MS; !fs.existsSync(file) && Date.now() < end;) await sleep(50);
}

const held = async () => options.hold && await awaited(options.hold);

async function simple() {
  const consumer = new SimpleConsumer({ ...consuming(), awaitDuration: 5_000 });
  await consumer.startup();
  write({ event: 'ready' });
  const left = counter();
  for (const end = Date.now() + LIMIT_MS; !left.isDone() && Date.now() < end;) {
    let messages;
    try {
      messages = await consumer.receive(16, number('invisibleS', 15) * 1_000);
    } catch (error) {
      write({ event: 'failed', error: String(error) });
      await sleep(200);
      continue;
    }
    for (const message of messages) {
      write(seen('received', message));
      await held();
      if (message.body.toString() === options.change && message.deliveryAttempt === 1) {
        await consumer.changeInvisibleDuration(message, 1_000);
        continue;
      }
      await consumer.ack(message);
      left.take(message);
    }
  }
  await consumer.shutdown();
}

async function push() {
  let failures = number('times', 0);
  const left = counter();
  const consumer = new PushConsumer({
    ...consuming(),
    messageListener: {
      async consume(message) {
        write(seen('received', message));
        left.take(message);
        return message.body.toString() === options.fail && failures-- > 0 ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
      },
    },
  });
  await consumer.startup();
  write({ event: 'ready' });
  for (const end = Date.now() + LIMIT_MS; !left.isDone() && Date.now() < end;) await sleep(50);
  await sleep(1_000); // what ends the last message is sent after the listener has returned
}

async function transact() {
  const checker = {
    async check(message) {
      write(seen('checked', message));
      return message.body.toString() % KINDS === 2
        ? TransactionResolution.COMMIT : TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED;
    },
  };
  const producer = new Producer({ ...configuration(), topic: options.topic, checker });
  await producer.startup();
  const transactions = [];
  for (let n = 0; n < number('count'); n++) {
    const transaction = producer.beginTransaction();
    const receipt = await producer.send(messageOf(n), transaction);
    write({ event: 'prepared', body: `${n}`, id: receipt.messageId });
    transactions.push(transaction);
  }
  await held();
  for (const [ n, transaction ] of transactions.entries()) {
    if (n % KINDS === 0) await transaction.commit();
    if (n % KINDS === 1) await transaction.rollback();
  }
  await awaited(options.end);
  await producer.shutdown();
}

({ send, simple, push, transact })[action]().then(() => {
  write({ event: 'end' });
  process.exit(0); // the client's timers may outlive it
}, error => {
  console.error(error);
  process.exit(1);
});
