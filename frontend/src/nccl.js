// What NCCL's log says that its tuner chose for a kind of collective.

/**
 * Algorithm, protocol and channels of the choice that moved most; of the group and the mean size first. Null where no log
 * says it.
 * @param {import("../schema").Network | null} network
 * @param {{kind: string, group: string, mean_bytes: number | null}} family
 * @returns {string | null}
 */
export function chosen(network, { kind, group, mean_bytes }) {
  const ofKind = (network?.choices ?? []).filter((choice) => choice.kind === kind);
  const ofGroup = ofKind.filter((choice) => choice.group === group);
  const own = ofGroup.length ? ofGroup : ofKind;
  const exact = own.filter(({ bytes }) => bytes === mean_bytes);
  const [most] = (exact.length ? exact : own).sort((one, other) => other.bytes * other.times - one.bytes * one.times);
  if (!most || !network) return null;
  const of = network.channels ? ` of ${network.channels}` : "";
  return [most.algorithm, most.protocol, most.channels ? `${most.channels}${of} channels` : ""].filter(Boolean).join(", ");
}
